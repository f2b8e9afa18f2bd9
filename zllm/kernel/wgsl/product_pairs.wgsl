// GPUs, several tokens, formats whose integers are apart from their scales: x as integers of 16
// bits a block, in bytes (product_input.wgsl): Σ (d q + m) x = d s (256 Σ q high + Σ q low) +
// m Σ x. With product_few.
//
// A weight and token cost half a packed dot product, which an H200 issues every other cycle: as
// long as a multiplication of floats, but nothing to decode, and half the instructions. For 4 rows
// and 8 tokens, in cycles of a warp and block: dot products 1024 of the one pipe that has them; of
// all pipes 512 dot products, 128 to end them, 32 conversions (8 cycles each of their own pipe),
// some 100 to decode, 36 loads of x. Floats (product_shared): 1024 + 416 to decode + 64 loads.
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
                // unroll i EACH
                let dm_$i = block_factors(block_$i);
                // unroll j 4
                let q_$i_$j = block_codes_$j(block_$i);
                let p_$i_$j = later_codes_$j(block_$i);
                // end
                // end
                // unroll t BATCH
                // unroll i EACH
                var high_$t_$i = 0;
                var low_$t_$i = 0;
                // end
                // unroll j 4
                let v_$t_$j = staged[s][4u * $tu + $ju];
                // unroll i EACH
                high_$t_$i += dot4I8Packed(q_$i_$j, v_$t_$j.x);
                low_$t_$i += dot4I8Packed(q_$i_$j, v_$t_$j.y);
                high_$t_$i += dot4I8Packed(p_$i_$j, v_$t_$j.z);
                low_$t_$i += dot4I8Packed(p_$i_$j, v_$t_$j.w);
                // end
                // end
                let more_$t = bitcast<vec4<f32>>(staged[s][4u * BATCH + $tu / 2u]);
                let scale_$t = more_$t[2u * ($tu % 2u)];
                let total_$t = more_$t[2u * ($tu % 2u) + 1u];
                // unroll i EACH
                sum_$t_$i = fma(
                    dm_$i.x * scale_$t,
                    f32(256 * high_$t_$i + low_$t_$i),
                    fma(dm_$i.y, total_$t, sum_$t_$i)
                );
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

// Vec4 i of the chunk that begins at block `first`; some other where there is none.
fn fetch(group: u32, i: u32, first: u32) -> vec4<u32> {
    return pairs[group * BLOCKS * SLOT + min(first * SLOT + i, BLOCKS * SLOT - 1u)];
}

fn later_codes_0(block: Block) -> u32 {
    return block_codes_4(block);
}

fn later_codes_1(block: Block) -> u32 {
    return block_codes_5(block);
}

fn later_codes_2(block: Block) -> u32 {
    return block_codes_6(block);
}

fn later_codes_3(block: Block) -> u32 {
    return block_codes_7(block);
}
