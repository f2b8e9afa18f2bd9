// GPUs, pairs one by one: the pair's x lies in workgroup memory, CHUNK quads at a time. LANES
// threads share a team of EACH matrix rows (of which half are gates if GATED) and take whole
// blocks of them. EACH is 4.
override THREADS: u32;
override TEAMS: u32; // of EACH matrix rows, of a pair
override LANES: u32; // of a team; at least 4, at most the blocks of a chunk
override CHUNK: u32; // at most STAGED, which is HELD · THREADS

var<workgroup> staged: array<vec4<f32>, STAGED>;

@compute @workgroup_size(THREADS)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let mine = THREADS / LANES;
    for (var pair = group.y; pair < units(); pair += groups.y) {
        let expert = expert_of(pair);
        if (in_bank(expert)) {
            for (var first = group.x * mine; first < TEAMS; first += groups.x * mine) {
                sum_teams(expert, pair, first, lane);
                store_teams(pair, first, lane);
            }
        }
    }
}

// Leaves each lane's shares of its team's sums in workgroup memory.
fn sum_teams(expert: u32, pair: u32, first_team: u32, lane: u32) {
    let row = (first_team + lane / LANES) * select(EACH, EACH / 2u, GATED);
    let from_row = source_row(pair);
    // The next blocks and the next chunk of x are on their way while others are multiplied.
    var b = lane % LANES;
    // unroll i EACH
    let start_$i = row_start(matrix_row(expert, row, $iu));
    var next_$i = block_at(start_$i, min(b, BLOCKS - 1u));
    var sum_$i = 0.0;
    // end
    // unroll r HELD
    let x_$r = fetch(from_row, $ru * THREADS + lane, 0u);
    // end
    // unroll r HELD
    stage($ru * THREADS + lane, x_$r);
    // end
    workgroupBarrier();
    for (var first = 0u; first < BLOCKS * QUADS; first += CHUNK) {
        // unroll r HELD
        let ahead_$r = fetch(from_row, $ru * THREADS + lane, first + CHUNK);
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
                let v_$k = staged[turned(at + $ku)];
                // unroll i EACH
                sum_$i = add_dot(sum_$i, block_quad_$k(block_$i), v_$k);
                // end
                // end
            }
        }
        workgroupBarrier();
        if (first + CHUNK < BLOCKS * QUADS) {
            // unroll r HELD
            stage($ru * THREADS + lane, ahead_$r);
            // end
            workgroupBarrier();
        }
    }
    // Each lane's shares, in memory that holds x no more. Whole vectors: a store to a component may
    // write the others as well.
    staged[lane] = vec4<f32>(sum_0, sum_1, sum_2, sum_3);
    workgroupBarrier();
    join_sums(lane);
    workgroupBarrier();
}

// Where a quad of a chunk lies: lanes that read the same quad of neighbouring blocks meet different
// banks of workgroup memory.
fn turned(quad: u32) -> u32 {
    return quad ^ ((quad >> 3u) & TURN);
}

// Quad i of the chunk that begins at quad `first`, if there is one.
fn fetch(from_row: u32, i: u32, first: u32) -> vec4<f32> {
    if (i < CHUNK && first + i < BLOCKS * QUADS) {
        return x4(from_row, first + i);
    }
    return vec4<f32>();
}

fn stage(i: u32, quad: vec4<f32>) {
    if (i < CHUNK) {
        staged[turned(i)] = quad;
    }
}

fn add_dot(sum: f32, a: vec4<f32>, b: vec4<f32>) -> f32 {
    return fma(a.w, b.w, fma(a.z, b.z, fma(a.y, b.y, fma(a.x, b.x, sum))));
}

// Sums of each eighth of a team's lanes, in the place of the first of them.
fn join_sums(lane: u32) {
    let span = max(LANES / 8u, 1u);
    for (var k = lane; k < THREADS / span; k += THREADS) {
        var sum = staged[k * span];
        for (var i = 1u; i < span; i++) {
            sum += staged[k * span + i];
        }
        staged[k * span] = sum;
    }
}

// Sum j of the team that begins at a lane.
fn total(from_lane: u32, j: u32) -> f32 {
    var sum = 0.0;
    for (var i = 0u; i < LANES; i += max(LANES / 8u, 1u)) {
        sum += staged[from_lane + i][j];
    }
    return sum;
}

// The results of the workgroup's teams, from `first_team` on.
fn store_teams(pair: u32, first_team: u32, lane: u32) {
    let results = select(EACH, EACH / 2u, GATED); // of a team
    for (var r = lane; r < THREADS / LANES * results; r += THREADS) {
        let row = first_team * results + r;
        if (row < ROWS) {
            let from_lane = r / results * LANES;
            let j = r % results;
            let partner = total(from_lane, select(j, j + EACH / 2u, GATED));
            store(pair, row, weight_of(pair) * total(from_lane, j), partner);
        }
    }
    workgroupBarrier();
}

// The team's matrix row i; beyond the end, the last one.
fn matrix_row(expert: u32, row: u32, i: u32) -> u32 {
    if (GATED) {
        return bank_row(expert, min(row + i % (EACH / 2u), ROWS - 1u), i / (EACH / 2u));
    }
    return bank_row(expert, min(row + i, ROWS - 1u), 0u);
}
