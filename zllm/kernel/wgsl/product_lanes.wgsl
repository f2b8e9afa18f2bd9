// Software adapters: a thread owns twice HALF matrix rows (gates and their partners if GATED) and
// BATCH tokens; no barrier, no workgroup memory, one bounds check a block. No thread leaves early:
// those of a subgroup may read x together.
fn product(id: vec3<u32>) {
    let row = id.x * select(2u * HALF, HALF, GATED);
    let t = BATCH * id.y;
    // unroll h 2
    // unroll i HALF
    let start_$h_$i = row_start(matrix_row(row, $hu, $iu));
    // end
    // end
    // unroll t BATCH
    var squares_$t = 0.0;
    // unroll h 2
    // unroll i HALF
    var sum_$t_$h_$i = 0.0;
    // end
    // end
    // end
    for (var b = 0u; b < BLOCKS; b++) {
        // unroll t BATCH
        let x_$t = input(min(t + $tu, TOKENS - 1u), b);
        squares_$t += x_$t.squares;
        // end
        // unroll h 2
        // unroll i HALF
        let block_$h_$i = block_at(start_$h_$i, b);
        // unroll t BATCH
        sum_$t_$h_$i += block_dot(block_$h_$i, x_$t);
        // end
        // end
        // end
    }
    // unroll t BATCH
    let scale_$t = norm_scale(squares_$t);
    // unroll i HALF
    store_both(t + $tu, row + $iu, scale_$t * sum_$t_0_$i, scale_$t * sum_$t_1_$i);
    // end
    // end
}

// Matrix row i of either half of the thread's; beyond the end, the last one.
fn matrix_row(row: u32, half: u32, i: u32) -> u32 {
    if (GATED) {
        return min(row + i, ROWS - 1u) + half * ROWS;
    }
    return min(row + half * HALF + i, ROWS - 1u);
}

fn store_both(token: u32, row: u32, first: f32, second: f32) {
    if (token >= TOKENS || row >= ROWS) {
        return;
    }
    if (GATED) {
        store_gated(token, row, first, second);
        return;
    }
    store(token, row, first);
    if (row + HALF < ROWS) {
        store(token, row + HALF, second);
    }
}
