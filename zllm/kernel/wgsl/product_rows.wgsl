// GPUs, few tokens: a workgroup owns four matrix rows (or two gates with their partners) and all
// tokens, at most eight; each decoded weight meets every token.
override GROUPS: u32; // of four results (two if GATED)

fn run(group: vec3<u32>, groups: vec3<u32>, lane: u32, size: u32) {
    for (var g = group.x; g < GROUPS; g += groups.x) {
        product_group(g * select(4u, 2u, GATED), lane, size);
    }
}

fn product_group(row: u32, lane: u32, size: u32) {
    let parts = BLOCKS * PARTS;
    let r0 = row_start(matrix_row(row, 0u));
    let r1 = row_start(matrix_row(row, 1u));
    let r2 = row_start(matrix_row(row, 2u));
    let r3 = row_start(matrix_row(row, 3u));
    var acc = array<vec4<f32>, 8>(); // one component a row
    var squares = array<f32, 8>();
    for (var p = lane; p < parts; p += THREADS) {
        let quads = part_quads(p);
        let w0 = decode(r0, p);
        let w1 = decode(r1, p);
        let w2 = decode(r2, p);
        let w3 = decode(r3, p);
        for (var t = 0u; t < TOKENS; t++) {
            var a = x4(t, quads.x);
            var b = x4(t, quads.y);
            if (NORM) {
                squares[t] += dot(a, a) + dot(b, b);
                a *= norm4(quads.x);
                b *= norm4(quads.y);
            }
            acc[t] += vec4<f32>(
                dot(w0[0], a) + dot(w0[1], b), dot(w1[0], a) + dot(w1[1], b),
                dot(w2[0], a) + dot(w2[1], b), dot(w3[0], a) + dot(w3[1], b)
            );
        }
    }
    for (var t = 0u; t < TOKENS; t++) {
        var y = reduce_sum(acc[t], lane, size);
        if (NORM) {
            y *= norm_scale(reduce_sum(vec4<f32>(squares[t]), lane, size).x);
        }
        if (GATED) {
            if (lane < 2u && row + lane < ROWS) {
                store_gated(t, row + lane, y[lane], y[lane + 2u]);
            }
        } else if (lane < 4u && row + lane < ROWS) {
            store(t, row + lane, y[lane]);
        }
    }
}

// The workgroup's matrix row i; beyond the end, the last one.
fn matrix_row(row: u32, i: u32) -> u32 {
    if (GATED) {
        return min(row + i % 2u, ROWS - 1u) + ROWS * (i / 2u);
    }
    return min(row + i, ROWS - 1u);
}
