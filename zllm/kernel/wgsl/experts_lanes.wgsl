// Software adapters: a thread owns eight results of a unit (or four gates with their partners).
override THREADS: u32;

@compute @workgroup_size(THREADS)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let row = id.x * select(8u, 4u, GATED);
    if (row >= ROWS) {
        return;
    }
    for (var unit = id.y; unit < units(); unit += groups.y) {
        if (!has_results(unit)) {
            continue;
        }
        var low = vec4<f32>();
        var high = vec4<f32>();
        for (var i = 0u; i < pairs_of_unit(); i++) {
            let pair = unit * pairs_of_unit() + i;
            let expert = expert_of(pair);
            if (!in_bank(expert)) {
                continue;
            }
            let y = eight_rows(expert, pair, row);
            low += weight_of(pair) * y[0];
            high += weight_of(pair) * y[1];
        }
        for (var i = 0u; i < 4u; i++) {
            if (row + i < ROWS) {
                store(unit, row + i, low[i], high[i]);
            }
            if (!GATED && row + 4u + i < ROWS) {
                store(unit, row + 4u + i, high[i], 0.0);
            }
        }
    }
}

fn eight_rows(expert: u32, pair: u32, row: u32) -> mat2x4<f32> {
    let from_row = source_row(pair);
    let r0 = start(expert, row, 0u);
    let r1 = start(expert, row, 1u);
    let r2 = start(expert, row, 2u);
    let r3 = start(expert, row, 3u);
    let r4 = start(expert, row, 4u);
    let r5 = start(expert, row, 5u);
    let r6 = start(expert, row, 6u);
    let r7 = start(expert, row, 7u);
    var low = vec4<f32>();
    var high = vec4<f32>();
    for (var b = 0u; b < BLOCKS; b++) {
        let x0 = input(from_row, b);
        low += vec4<f32>(
            block_dot(block_at(r0, b), x0), block_dot(block_at(r1, b), x0),
            block_dot(block_at(r2, b), x0), block_dot(block_at(r3, b), x0)
        );
        high += vec4<f32>(
            block_dot(block_at(r4, b), x0), block_dot(block_at(r5, b), x0),
            block_dot(block_at(r6, b), x0), block_dot(block_at(r7, b), x0)
        );
    }
    return mat2x4<f32>(low, high);
}

// Where the thread's matrix row i begins; beyond the end, the last one.
fn start(expert: u32, row: u32, i: u32) -> u32 {
    if (GATED) {
        return row_start(bank_row(expert, min(row + i % 4u, ROWS - 1u), i / 4u));
    }
    return row_start(bank_row(expert, min(row + i, ROWS - 1u), 0u));
}
