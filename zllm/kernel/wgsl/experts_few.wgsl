// GPUs, few pairs of an expert: a workgroup owns four matrix rows (or two gates with their
// partners) and a tile of TOKENS pairs; each decoded weight meets every pair.
override GROUPS: u32; // of four results (two if GATED)

fn run(group: vec3<u32>, groups: vec3<u32>, lane: u32, size: u32) {
    for (var i = group.y; i < tile_count(); i += groups.y) {
        let tile = tile_at(i);
        if (!in_bank(tile.x)) {
            continue;
        }
        for (var g = group.x; g < GROUPS; g += groups.x) {
            product_group(tile, g * select(4u, 2u, GATED), lane, size);
        }
    }
}

fn product_group(tile: vec3<u32>, row: u32, lane: u32, size: u32) {
    let r0 = row_start(matrix_row(tile.x, row, 0u));
    let r1 = row_start(matrix_row(tile.x, row, 1u));
    let r2 = row_start(matrix_row(tile.x, row, 2u));
    let r3 = row_start(matrix_row(tile.x, row, 3u));
    // unroll t TOKENS
    let row$t = source_row(tile.x, min(tile.y + $tu, tile.z - 1u)); // beyond the tile, its last
    var acc$t = vec4<f32>(); // one component a matrix row
    // end
    for (var p = lane; p < BLOCKS * PARTS; p += THREADS) {
        let quads = part_quads(p);
        let w0 = decode(r0, p);
        let w1 = decode(r1, p);
        let w2 = decode(r2, p);
        let w3 = decode(r3, p);
        // unroll t TOKENS
        let a$t = x4(row$t, quads.x);
        let b$t = x4(row$t, quads.y);
        acc$t += vec4<f32>(
            dot(w0[0], a$t) + dot(w0[1], b$t), dot(w1[0], a$t) + dot(w1[1], b$t),
            dot(w2[0], a$t) + dot(w2[1], b$t), dot(w3[0], a$t) + dot(w3[1], b$t)
        );
        // end
    }
    // unroll t TOKENS
    let y$t = reduce_sum(acc$t, lane, size);
    if (tile.y + $tu < tile.z && lane < select(4u, 2u, GATED) && row + lane < ROWS) {
        store(tile.x, tile.y + $tu, row + lane, y$t[lane], y$t[(lane + 2u) % 4u]);
    }
    // end
}

// The workgroup's matrix row i; beyond the end, the last one.
fn matrix_row(expert: u32, row: u32, i: u32) -> u32 {
    if (GATED) {
        return bank_row(expert, min(row + i % 2u, ROWS - 1u), i / 2u);
    }
    return bank_row(expert, min(row + i, ROWS - 1u), 0u);
}
