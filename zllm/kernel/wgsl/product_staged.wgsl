// GPUs, few tokens: x lies in workgroup memory, CHUNK quads of each of BATCH tokens at a time.
// LANES threads share a team of EACH matrix rows (of which half are gates if GATED); each decodes
// whole blocks, every weight once.
override THREADS: u32;
override TEAMS: u32; // of EACH matrix rows, in the whole grid
override LANES: u32; // of a team; at most the blocks of a chunk

// Flat, though a plane a token would need one index check instead of BATCH: the loads that a
// compiler then hoists took registers, and on an H200 a fifth more time.
var<workgroup> staged: array<vec4<f32>, STAGED>; // at least BATCH · CHUNK

@compute @workgroup_size(THREADS)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let mine = THREADS / LANES;
    for (var first = group.x * mine; first < TEAMS; first += groups.x * mine) {
        product_teams(first, lane);
    }
}

fn product_teams(first_team: u32, lane: u32) {
    let row = (first_team + lane / LANES) * select(EACH, EACH / 2u, GATED);
    // unroll i EACH
    let start_$i = row_start(matrix_row(row, $iu));
    // end
    // unroll t BATCH
    // unroll i EACH
    var sum_$t_$i = 0.0;
    // end
    // end
    // The next blocks and the next chunk of x are on their way while others are multiplied.
    var b = lane % LANES;
    // unroll i EACH
    var next_$i = block_at(start_$i, min(b, BLOCKS - 1u));
    // end
    var squares = 0.0;
    // unroll r HELD
    let x_$r = fetch($ru * THREADS + lane, 0u);
    // end
    // unroll r HELD
    squares += stage($ru * THREADS + lane, 0u, x_$r);
    // end
    workgroupBarrier();
    for (var first = 0u; first < BLOCKS * QUADS; first += CHUNK) {
        // unroll r HELD
        let ahead_$r = fetch($ru * THREADS + lane, first + CHUNK);
        // end
        for (var s = 0u; s < CHUNK / QUADS / LANES; s++) {
            let at = b * QUADS - first;
            let within = b < BLOCKS;
            b += LANES;
            // unroll i EACH
            let block_$i = next_$i;
            next_$i = block_at(start_$i, min(b, BLOCKS - 1u));
            // end
            if (within) {
                // unroll k QUADS
                let at_$k = turned(at + $ku);
                // unroll i EACH
                let w_$k_$i = block_quad_$k(block_$i);
                // end
                // unroll t BATCH
                let v_$k_$t = staged[$tu * CHUNK + at_$k];
                // unroll i EACH
                sum_$t_$i = add_dot(sum_$t_$i, w_$k_$i, v_$k_$t);
                // end
                // end
                // end
            }
        }
        workgroupBarrier();
        if (first + CHUNK < BLOCKS * QUADS) {
            // unroll r HELD
            squares += stage($ru * THREADS + lane, first + CHUNK, ahead_$r);
            // end
            workgroupBarrier();
        }
    }
    // Whole vectors: a write of one component may write back others, which are of another thread.
    // All indices of `sums` are constants.
    var sums = array<vec4<f32>, SUMS>();
    // unroll t BATCH
    // unroll i EACH
    sums[(EACH * $tu + $iu) / 4u][(EACH * $tu + $iu) % 4u] = sum_$t_$i;
    // end
    // end
    if (NORM) {
        sums[SUMS - 1u].x = squares;
    }
    // unroll q SUMS
    staged[$qu * THREADS + lane] = sums[$q];
    // end
    workgroupBarrier();
    join_sums(lane);
    if (NORM && lane < 16u) {
        join_squares(lane * (THREADS / 16u));
    }
    workgroupBarrier();
    store_teams(first_team, lane);
    workgroupBarrier();
}

// Where a quad of a chunk lies: lanes that read the same quad of neighbouring blocks meet different
// banks.
fn turned(quad: u32) -> u32 {
    return quad ^ ((quad >> 3u) & TURN);
}

// Quad i of the chunk that begins at quad `first` of each token, if there is one.
fn fetch(i: u32, first: u32) -> vec4<f32> {
    let quad = first + i % CHUNK;
    if (i < BATCH * CHUNK && quad < BLOCKS * QUADS) {
        return x4(i / CHUNK, quad);
    }
    return vec4<f32>();
}

// Returns the sum of its squares; of the one token, for several are not normalised here.
fn stage(i: u32, first: u32, x: vec4<f32>) -> f32 {
    let quad = first + i % CHUNK;
    if (i >= BATCH * CHUNK || quad >= BLOCKS * QUADS) {
        return 0.0;
    }
    var v = x;
    var squares = 0.0;
    if (NORM) {
        squares = dot(v, v);
        v *= norm4(quad);
    }
    staged[i / CHUNK * CHUNK + turned(i % CHUNK)] = v;
    return squares;
}

fn add_dot(sum: f32, w: vec4<f32>, v: vec4<f32>) -> f32 {
    return fma(w.w, v.w, fma(w.z, v.z, fma(w.y, v.y, fma(w.x, v.x, sum))));
}

// Sums of each eighth of a team's lanes in the place of the first of them, in memory that holds x
// no more.
fn join_sums(lane: u32) {
    let span = max(LANES / 8u, 1u);
    for (var k = lane; k < (SUMS - select(0u, 1u, NORM)) * THREADS / span; k += THREADS) {
        var sum = staged[k * span];
        for (var i = 1u; i < span; i++) {
            sum += staged[k * span + i];
        }
        staged[k * span] = sum;
    }
}

// Sum j of a team.
fn total(team: u32, j: u32) -> f32 {
    let first = j / 4u * THREADS + team * LANES;
    var sum = 0.0;
    for (var i = 0u; i < LANES; i += max(LANES / 8u, 1u)) {
        sum += staged[first + i][j % 4u];
    }
    return sum;
}

// Squares of the sixteenth of the threads from `lane` on, in the place of the first.
fn join_squares(lane: u32) {
    var sum = 0.0;
    for (var i = 0u; i < THREADS / 16u; i++) {
        sum += staged[(SUMS - 1u) * THREADS + lane + i].x;
    }
    staged[(SUMS - 1u) * THREADS + lane] = vec4<f32>(sum);
}

fn all_squares() -> f32 {
    var sum = 0.0;
    for (var i = 0u; i < 16u; i++) {
        sum += staged[(SUMS - 1u) * THREADS + i * (THREADS / 16u)].x;
    }
    return sum;
}

// The results of the workgroup's teams, from `first_team` on.
fn store_teams(first_team: u32, lane: u32) {
    let results = select(EACH, EACH / 2u, GATED); // of a team and token
    let rows = THREADS / LANES * results;
    for (var i = lane; i < rows * BATCH; i += THREADS) {
        let t = i / rows;
        let r = i % rows;
        let row = first_team * results + r;
        if (row < ROWS) {
            var s = 1.0;
            if (NORM) {
                s = norm_scale(all_squares());
            }
            let j = EACH * t + r % results;
            let y = s * total(r / results, j);
            if (GATED) {
                store_gated(t, row, y, s * total(r / results, j + EACH / 2u));
            } else {
                store(t, row, y);
            }
        }
    }
}
