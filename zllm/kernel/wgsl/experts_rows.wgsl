// GPUs: a workgroup owns four results of a unit (or two gates with their partners). Its lanes share
// the pairs of the unit as well as their columns.
override GROUPS: u32; // of four results (two if GATED)

fn run(group: vec3<u32>, groups: vec3<u32>, lane: u32, size: u32) {
    for (var unit = group.y; unit < units(); unit += groups.y) {
        if (!has_results(unit)) {
            continue;
        }
        for (var g = group.x; g < GROUPS; g += groups.x) {
            product_group(unit, g * select(4u, 2u, GATED), lane, size);
        }
    }
}

fn product_group(unit: u32, row: u32, lane: u32, size: u32) {
    let parts = BLOCKS * PARTS;
    let alone = pairs_of_unit() == 1u;
    var acc = vec4<f32>(); // one component a row
    for (var p = lane; p < parts * pairs_of_unit(); p += THREADS) {
        let pair = unit * pairs_of_unit() + select(p / parts, 0u, alone);
        if (GATED || in_bank(expert_of(pair))) {
            acc += weight_of(pair) * four_rows(pair, row, select(p % parts, p, alone));
        }
    }
    let y = reduce_sum(acc, lane, size);
    if (lane < select(4u, 2u, GATED) && row + lane < ROWS) {
        store(unit, row + lane, y[lane], y[(lane + 2u) % 4u]);
    }
}

// The share of a part in four products.
fn four_rows(pair: u32, row: u32, part: u32) -> vec4<f32> {
    let expert = expert_of(pair);
    let from_row = source_row(pair);
    let w0 = decode(row_start(matrix_row(expert, row, 0u)), part);
    let w1 = decode(row_start(matrix_row(expert, row, 1u)), part);
    let w2 = decode(row_start(matrix_row(expert, row, 2u)), part);
    let w3 = decode(row_start(matrix_row(expert, row, 3u)), part);
    let quads = part_quads(part);
    let a = x4(from_row, quads.x);
    let b = x4(from_row, quads.y);
    return vec4<f32>(
        dot(w0[0], a) + dot(w0[1], b), dot(w1[0], a) + dot(w1[1], b),
        dot(w2[0], a) + dot(w2[1], b), dot(w3[0], a) + dot(w3[1], b)
    );
}

// The workgroup's matrix row i; beyond the end, the last one.
fn matrix_row(expert: u32, row: u32, i: u32) -> u32 {
    if (GATED) {
        return bank_row(expert, min(row + i % 2u, ROWS - 1u), i / 2u);
    }
    return bank_row(expert, min(row + i, ROWS - 1u), 0u);
}
