// Software adapters: a thread owns eight matrix rows (or four gates with their partners) and up to
// four tokens; no barrier, no workgroup memory, one bounds check a block.
override THREADS: u32;

@compute @workgroup_size(THREADS)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let row = id.x * select(8u, 4u, GATED);
    if (row >= ROWS) {
        return;
    }
    let t = 4u * id.y;
    let t1 = min(t + 1u, TOKENS - 1u);
    let t2 = min(t + 2u, TOKENS - 1u);
    let t3 = min(t + 3u, TOKENS - 1u);
    let r0 = start(row, 0u);
    let r1 = start(row, 1u);
    let r2 = start(row, 2u);
    let r3 = start(row, 3u);
    let r4 = start(row, 4u);
    let r5 = start(row, 5u);
    let r6 = start(row, 6u);
    let r7 = start(row, 7u);
    var a0 = vec4<f32>(); // one component a token
    var a1 = vec4<f32>();
    var a2 = vec4<f32>();
    var a3 = vec4<f32>();
    var a4 = vec4<f32>();
    var a5 = vec4<f32>();
    var a6 = vec4<f32>();
    var a7 = vec4<f32>();
    var squares = vec4<f32>();
    var x1: Input;
    var x2: Input;
    var x3: Input;
    for (var b = 0u; b < BLOCKS; b++) {
        let x0 = input(t, b);
        if (TOKENS > 1u) {
            x1 = input(t1, b);
        }
        if (TOKENS > 2u) {
            x2 = input(t2, b);
            x3 = input(t3, b);
        }
        squares += vec4<f32>(x0.squares, x1.squares, x2.squares, x3.squares);
        a0 += dots(block_at(r0, b), x0, x1, x2, x3);
        a1 += dots(block_at(r1, b), x0, x1, x2, x3);
        a2 += dots(block_at(r2, b), x0, x1, x2, x3);
        a3 += dots(block_at(r3, b), x0, x1, x2, x3);
        a4 += dots(block_at(r4, b), x0, x1, x2, x3);
        a5 += dots(block_at(r5, b), x0, x1, x2, x3);
        a6 += dots(block_at(r6, b), x0, x1, x2, x3);
        a7 += dots(block_at(r7, b), x0, x1, x2, x3);
    }
    for (var i = 0u; i < min(4u, TOKENS); i++) {
        let token = t + i;
        if (token < TOKENS) {
            let s = norm_scale(squares[i]);
            let low = s * vec4<f32>(a0[i], a1[i], a2[i], a3[i]);
            let high = s * vec4<f32>(a4[i], a5[i], a6[i], a7[i]);
            store_rows(token, row, low, high);
        }
    }
}

// Where the thread's matrix row i begins; beyond the end, the last one.
fn start(row: u32, i: u32) -> u32 {
    if (GATED) {
        return row_start(min(row + i % 4u, ROWS - 1u) + ROWS * (i / 4u));
    }
    return row_start(min(row + i, ROWS - 1u));
}

fn dots(block: Block, x0: Input, x1: Input, x2: Input, x3: Input) -> vec4<f32> {
    var d = vec4<f32>(block_dot(block, x0), 0.0, 0.0, 0.0);
    if (TOKENS > 1u) {
        d.y = block_dot(block, x1);
    }
    if (TOKENS > 2u) {
        d.z = block_dot(block, x2);
        d.w = block_dot(block, x3);
    }
    return d;
}

fn store_rows(token: u32, row: u32, low: vec4<f32>, high: vec4<f32>) {
    for (var i = 0u; i < 4u; i++) {
        if (GATED) {
            if (row + i < ROWS) {
                store_gated(token, row + i, low[i], high[i]);
            }
        } else {
            if (row + i < ROWS) {
                store(token, row + i, low[i]);
            }
            if (row + 4u + i < ROWS) {
                store(token, row + 4u + i, high[i]);
            }
        }
    }
}
