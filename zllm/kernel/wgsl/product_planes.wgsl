// GPUs with subgroups, one token: x lies in workgroup memory as integers of 24 bits, in planes of
// high, middle and low bytes, scaled a block so that its largest element is as exact as a float:
// Σ (d q + m) x = d s (65536 Σ q high + 256 Σ q middle + Σ q low) + m Σ x, where all sums but the
// last are of integers. There are CHUNK quads of x at a time, for all teams of a workgroup if it is
// no longer. LANES threads of a subgroup share a team of EACH matrix rows (of which half are gates
// if GATED).
override THREADS: u32;
override TEAMS: u32; // of EACH matrix rows, in the whole grid
override LANES: u32; // of a team; a power of two, at most a subgroup and the blocks of a chunk

var<workgroup> staged: array<vec4<u32>, STAGED>; // at least CHUNK, and THREADS / 4

@compute @workgroup_size(THREADS)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
    @builtin(subgroup_size) size: u32,
) {
    let mine = THREADS / LANES;
    // unroll r HELD
    var x_$r = fetch($ru * THREADS + lane, 0u);
    // end
    if (NORM) {
        var squares = 0.0;
        // unroll r HELD
        squares += dot(x_$r, x_$r);
        // end
        let scale = norm_scale(workgroup_sum(squares, lane, size));
        // unroll r HELD
        x_$r *= scale * norm_at($ru * THREADS + lane);
        // end
    }
    if (CHUNKS == 1u) {
        // unroll r HELD
        stage($ru * THREADS + lane, x_$r);
        // end
        workgroupBarrier();
    }
    for (var first = group.x * mine; first < TEAMS; first += groups.x * mine) {
        let results = select(EACH, EACH / 2u, GATED);
        let row = (first + lane / LANES) * results;
        // unroll i EACH
        let start_$i = row_start(matrix_row(row, $iu));
        var sum_$i = 0.0;
        // end
        // The next blocks and the next chunk of x are on their way while others are multiplied.
        var b = lane % LANES;
        // unroll i EACH
        var next_$i = block_at(start_$i, min(b, BLOCKS - 1u));
        // end
        for (var chunk = 0u; chunk < CHUNKS; chunk++) {
            if (CHUNKS > 1u) {
                workgroupBarrier();
                // unroll r HELD
                stage($ru * THREADS + lane, x_$r);
                // end
                let ahead = select(chunk + 1u, 0u, chunk + 1u == CHUNKS) * CHUNK;
                // unroll r HELD
                x_$r = fetch($ru * THREADS + lane, ahead);
                // end
                workgroupBarrier();
            }
            for (var s = 0u; s < CHUNK / QUADS / LANES; s++) {
                let at = b * QUADS - chunk * CHUNK;
                let within = b < BLOCKS;
                b += LANES;
                // unroll i EACH
                let block_$i = next_$i;
                next_$i = block_at(start_$i, min(b, BLOCKS - 1u));
                var high_$i = 0;
                var middle_$i = 0;
                var low_$i = 0;
                // end
                if (within) {
                    // unroll k QUADS
                    let v_$k = staged[turned(at + $ku)];
                    // unroll i EACH
                    let q_$k_$i = block_codes_$k(block_$i);
                    high_$i += dot4I8Packed(q_$k_$i, v_$k.x);
                    middle_$i += dot4I8Packed(q_$k_$i, v_$k.y);
                    low_$i += dot4I8Packed(q_$k_$i, v_$k.z);
                    // end
                    // end
                    let scale = bitcast<f32>(v_0.w);
                    let total = bitcast<f32>(v_1.w);
                    // unroll i EACH
                    let dm_$i = block_factors(block_$i);
                    let part_$i = fma(
                        65536.0, f32(high_$i), fma(256.0, f32(middle_$i), f32(low_$i))
                    );
                    sum_$i = fma(dm_$i.x * scale, part_$i, fma(dm_$i.y, total, sum_$i));
                    // end
                }
            }
        }
        // unroll i EACH
        sum_$i = team_sum(sum_$i);
        // end
        var y = sum_0;
        var up = 0.0;
        // unroll i EACH
        y = select(y, sum_$i, lane % LANES == $iu);
        up = select(up, sum_$i, lane % LANES + EACH / 2u == $iu);
        // end
        if (lane % LANES < results && row + lane % LANES < ROWS) {
            if (GATED) {
                store_gated(0u, row + lane % LANES, y, up);
            } else {
                store(0u, row + lane % LANES, y);
            }
        }
    }
}

// Where a quad of a chunk lies: lanes that read the same quad of neighbouring blocks meet different
// banks.
fn turned(quad: u32) -> u32 {
    return quad ^ ((quad >> 3u) & TURN);
}

// Quad i of the chunk that begins at quad `first`, or zeros.
fn fetch(i: u32, first: u32) -> vec4<f32> {
    let quad = first + i;
    if (i < CHUNK && quad < BLOCKS * QUADS) {
        return x4(0u, quad);
    }
    return vec4<f32>();
}

fn norm_at(quad: u32) -> vec4<f32> {
    if (quad < BLOCKS * QUADS) {
        return norm4(quad);
    }
    return vec4<f32>();
}

const MOST = 8355000.0; // of an integer: 127 · 65793 less what rounding may add

// The eight quads of a block are those of eight neighbouring lanes.
fn stage(i: u32, x: vec4<f32>) {
    let sizes = abs(x);
    var most = max(max(sizes.x, sizes.y), max(sizes.z, sizes.w));
    var total = x.x + x.y + x.z + x.w;
    // unroll j 3
    most = max(most, subgroupShuffleXor(most, 1u << $ju));
    total += subgroupShuffleXor(total, 1u << $ju);
    // end
    let low = vec4<i32>(round(x * select(MOST / most, 0.0, most < 1e-30)));
    let middle = (low + 128) >> vec4<u32>(8u);
    let high = (middle + 128) >> vec4<u32>(8u);
    let more = select(total, most / MOST, i % 8u == 0u);
    if (i < CHUNK) {
        staged[turned(i)] = vec4<u32>(
            pack4xI8(high), pack4xI8(middle), pack4xI8(low), bitcast<u32>(more)
        );
    }
}

// In memory that does not hold x yet.
fn workgroup_sum(share: f32, lane: u32, size: u32) -> f32 {
    let sum = subgroupAdd(share);
    if (lane % size == 0u) {
        staged[lane / size].x = bitcast<u32>(sum);
    }
    workgroupBarrier();
    var total = 0.0;
    for (var i = 0u; i < THREADS / size; i++) {
        total += bitcast<f32>(staged[i].x);
    }
    workgroupBarrier();
    return total;
}

fn team_sum(share: f32) -> f32 {
    var sum = share;
    // unroll j 5
    if (LANES > (1u << $ju)) {
        sum += subgroupShuffleXor(sum, 1u << $ju);
    }
    // end
    return sum;
}
