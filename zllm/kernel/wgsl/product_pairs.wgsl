// GPUs with subgroups, several tokens, formats whose integers are apart from their scales: x as
// integers of 16 bits, in bytes (product_input.wgsl):
// Σ (d q + m) x = d s (256 Σ q high + Σ q low) + m Σ x.
// LANES threads of a subgroup share a team of EACH matrix rows (of which half are gates if GATED)
// and BATCH tokens. They read neighbouring blocks of a row, and of x, which stays in a GPU's first
// cache: it needs neither workgroup memory nor barriers.
//
// A weight and token cost half a packed dot product, which an H200 issues every other cycle: as
// long as a multiplication of floats, but with nothing to decode, and half the instructions. Eight
// tokens at a time fill the registers: four, and twice as many threads, are faster, though weights
// are read twice (benchmarks/results/2026-11-30-products-h200.md).
override THREADS: u32;
override TEAMS: u32; // of EACH matrix rows, in the whole grid
override LANES: u32; // of a team; at least EACH · BATCH, at most a subgroup

@compute @workgroup_size(THREADS)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let width = THREADS / LANES;
    // Workgroups with the same rows are neighbours: their weights come from memory once.
    for (var first = group.y * width; first < TEAMS; first += groups.y * width) {
        product_team(first + lane / LANES, group.x, lane % LANES);
    }
}

fn product_team(team: u32, group: u32, lane: u32) {
    let results = select(EACH, EACH / 2u, GATED); // of a token
    let row = team * results;
    // unroll i EACH
    let start_$i = row_start(matrix_row(row, $iu));
    // end
    // unroll t BATCH
    // unroll i EACH
    var sum_$t_$i = 0.0;
    // end
    // end
    // The next blocks are on their way while others are multiplied. Compilers do not see through
    // this loop: unrolled it needs more registers, and takes an H200 a quarter longer.
    // unroll i EACH
    var next_$i = block_at(start_$i, min(lane, BLOCKS - 1u));
    // end
    var b = lane;
    for (; b < BLOCKS; ) {
        let x = group * WORDS * BLOCKS + b;
        b += LANES;
        // unroll i EACH
        let block_$i = next_$i;
        next_$i = block_at(start_$i, min(b, BLOCKS - 1u));
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
        let v_$t_$j = pairs[x + (4u * $tu + $ju) * BLOCKS];
        // unroll i EACH
        high_$t_$i += dot4I8Packed(q_$i_$j, v_$t_$j.x);
        low_$t_$i += dot4I8Packed(q_$i_$j, v_$t_$j.y);
        high_$t_$i += dot4I8Packed(p_$i_$j, v_$t_$j.z);
        low_$t_$i += dot4I8Packed(p_$i_$j, v_$t_$j.w);
        // end
        // end
        let more_$t = bitcast<vec4<f32>>(pairs[x + (4u * BATCH + $tu / 2u) * BLOCKS]);
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
    // Lane EACH · t + i has row i of token t.
    var y = 0.0;
    // unroll t BATCH
    var all_$t = vec4<f32>();
    // unroll i EACH
    all_$t[$i] = sum_$t_$i;
    // end
    y = select(y, team_row(all_$t, lane), lane / EACH == $tu);
    // end
    let up = subgroupShuffleXor(y, EACH / 2u);
    let i = lane % EACH;
    let token = group * BATCH + lane / EACH;
    if (lane / EACH < BATCH && token < TOKENS && team < TEAMS && i < results && row + i < ROWS) {
        if (GATED) {
            store_gated(token, row + i, y, up);
        } else {
            store(token, row + i, y);
        }
    }
}

// What the lanes of a team have of row lane % EACH, of EACH sums.
fn team_row(sums: vec4<f32>, lane: u32) -> f32 {
    var two = sums.xy;
    if (EACH == 4u) {
        let later = (lane & 2u) != 0u;
        two = select(sums.xy, sums.zw, later);
        two += subgroupShuffleXor(select(sums.zw, sums.xy, later), 2u);
    }
    let odd = (lane & 1u) != 0u;
    var sum = select(two.x, two.y, odd) + subgroupShuffleXor(select(two.y, two.x, odd), 1u);
    // unroll j 5
    if (EACH <= (1u << $ju) && (1u << $ju) < LANES) {
        sum += subgroupShuffleXor(sum, 1u << $ju);
    }
    // end
    return sum;
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
