// What product_pairs and product_shared have in common: several tokens on a GPU, CHUNK blocks of x
// of BATCH tokens in workgroup memory, a slot of SLOT vec4s for each. LANES threads share a team of
// EACH matrix rows (of which half are gates if GATED), each with its own blocks.
//
// Neighbouring threads have different teams and the same blocks, so that they read the same x: a
// load from workgroup memory then serves many threads at once. With threads of a team side by side
// each of them reads another x, and on an H200 such loads cost as much as all multiplications.
override THREADS: u32;
override TEAMS: u32; // of EACH matrix rows, in the whole grid
override LANES: u32; // of a team; they divide CHUNK

// Inner indices are constants, so that compilers check the outer one once for a block. An odd SLOT
// has threads with different blocks meet different banks.
var<workgroup> staged: array<array<vec4<u32>, SLOT>, CHUNK>;

@compute @workgroup_size(THREADS)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let width = THREADS / LANES;
    for (var first = group.x * width; first < TEAMS; first += groups.x * width) {
        product_teams(first, group.y, lane);
    }
}

fn stage(i: u32, x: vec4<u32>) {
    if (i < CHUNK * SLOT) {
        staged[i / SLOT][i % SLOT] = x;
    }
}

// In memory that holds x no more: a thread's sums of one token.
fn keep(i: u32, share: vec4<f32>) {
    staged[i / SLOT][i % SLOT] = bitcast<vec4<u32>>(share);
}

// Results of tokens turn · PER … of the group's: PER · THREADS sums are kept.
fn store_pass(first_team: u32, first_token: u32, turn: u32, lane: u32) {
    let width = THREADS / LANES;
    let results = select(EACH, EACH / 2u, GATED); // of a team and token
    for (var i = lane; i < width * PER; i += THREADS) {
        let t = turn * PER + i / width;
        let team = i % width;
        var y = vec4<f32>();
        for (var c = 0u; c < LANES; c++) {
            let at = i / width * THREADS + c * width + team;
            y += bitcast<vec4<f32>>(staged[at / SLOT][at % SLOT]);
        }
        let row = (first_team + team) * results;
        if (t < BATCH && first_token + t < TOKENS) {
            // unroll i EACH
            if ($iu < results && row + $iu < ROWS) {
                if (GATED) {
                    store_gated(first_token + t, row + $iu, y[$i], y[($iu + EACH / 2u) % EACH]);
                } else {
                    store(first_token + t, row + $iu, y[$i]);
                }
            }
            // end
        }
    }
}

// The team's matrix row i; beyond the end, the last one.
fn matrix_row(row: u32, i: u32) -> u32 {
    if (GATED) {
        return min(row + i % (EACH / 2u), ROWS - 1u) + ROWS * (i / (EACH / 2u));
    }
    return min(row + i, ROWS - 1u);
}
