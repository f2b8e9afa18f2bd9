// GPUs, several tokens, any format: whole blocks are decoded once for all of them, x as floats.
// With product_few.
fn product_teams(first_team: u32, group: u32, lane: u32) {
    let width = THREADS / LANES;
    let row = (first_team + lane % width) * select(EACH, EACH / 2u, GATED);
    // unroll i EACH
    let start_$i = row_start(matrix_row(row, $iu));
    // end
    // unroll t BATCH
    // unroll i EACH
    var sum_$t_$i = 0.0;
    // end
    // end
    // The next blocks and the next chunk of x are on their way while others are multiplied.
    var b = lane / width;
    // unroll i EACH
    var next_$i = block_at(start_$i, min(b, BLOCKS - 1u));
    // end
    // unroll r HELD
    var x_$r = fetch(group, $ru * THREADS + lane, 0u);
    // end
    for (var chunk = 0u; chunk < BLOCKS; chunk += CHUNK) {
        workgroupBarrier();
        // unroll r HELD
        stage($ru * THREADS + lane, x_$r);
        x_$r = fetch(group, $ru * THREADS + lane, chunk + CHUNK);
        // end
        workgroupBarrier();
        for (var s = lane / width; s < CHUNK; s += LANES) {
            let within = b < BLOCKS;
            b += LANES;
            // unroll i EACH
            let block_$i = next_$i;
            next_$i = block_at(start_$i, min(b, BLOCKS - 1u));
            // end
            if (within) {
                // unroll k QUADS
                // unroll i EACH
                let w_$k_$i = block_quad_$k(block_$i);
                // end
                // unroll t BATCH
                let x_$k_$t = staged[s][$ku / 2u * 2u * BATCH + 2u * $tu + $ku % 2u];
                let v_$k_$t = bitcast<vec4<f32>>(x_$k_$t);
                // unroll i EACH
                sum_$t_$i = add_dot(sum_$t_$i, w_$k_$i, v_$k_$t);
                // end
                // end
                // end
            }
        }
    }
    for (var turn = 0u; turn < PASSES; turn++) {
        workgroupBarrier();
        // unroll t BATCH
        if ($tu / PER == turn) {
            var share = vec4<f32>();
            // unroll i EACH
            share[$i] = sum_$t_$i;
            // end
            keep($tu % PER * THREADS + lane, share);
        }
        // end
        workgroupBarrier();
        store_pass(first_team, group * BATCH, turn, lane);
    }
}

// Quad i of the slots of the chunk that begins at block `first`; some other where there is none.
// Two quads of a token are side by side, then those of the next token.
fn fetch(group: u32, i: u32, first: u32) -> vec4<u32> {
    let block = min(first + i / SLOT, BLOCKS - 1u);
    let at = min(i % SLOT, QUADS * BATCH - 1u);
    let token = min(group * BATCH + at / 2u % BATCH, TOKENS - 1u);
    return bitcast<vec4<u32>>(x4(token, block * QUADS + at / (2u * BATCH) * 2u + at % 2u));
}

fn add_dot(sum: f32, w: vec4<f32>, v: vec4<f32>) -> f32 {
    return fma(w.w, v.w, fma(w.z, v.z, fma(w.y, v.y, fma(w.x, v.x, sum))));
}
