// GPUs, few keys in all: a workgroup owns a row, four of its heads and one split of its keys, KEYS
// at a time. Scores: LANES threads share a key, each with its part of four queries in registers.
// Sums: a thread owns four numbers of the latent of every `slices`-th key, loaded before their
// weights are known. SPLIT_KEYS is a multiple of KEYS.
const KEYS: u32 = 16u;
const LANES: u32 = 32u;
const TEAMS: u32 = 8u; // of LANES: a thread meets KEYS / TEAMS keys

var<workgroup> partial: array<vec4<f32>, 512>; // a component a head; [KEYS, LANES]
var<workgroup> scores: array<vec4<f32>, 16>;
var<workgroup> weights: array<vec4<f32>, 16>;
var<workgroup> starts: array<u32, 16>;
var<workgroup> kept: vec4<f32>;
var<workgroup> highest: vec4<f32>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let token = group.y;
    if (!valid(token)) {
        return;
    }
    let first = group.z * SPLIT_KEYS;
    let end = min(key_count(token), first + SPLIT_KEYS);
    let part = lane % LANES;
    let team = lane / LANES;
    let slices = 256u / RANK_QUADS;
    let slice = lane / RANK_QUADS;
    let column = lane % RANK_QUADS;
    // Of the next keys: what depends on nothing here is on its way early.
    var position = position_of(token, first + lane % KEYS, end);
    var start = latent_start(token, position);
    var more = first < end && position_of(token, first, end) >= 0;
    // unroll h 4
    let from_$h = (token * HEADS + min(4u * group.x + $hu, HEADS - 1u)) * QUADS;
    // unroll i EACH
    let q_$h_$i = query(from_$h, part + $iu * LANES);
    // end
    var acc_$h = vec4<f32>();
    // end
    var peak = vec4<f32>(LOWEST); // of the threads that weigh
    var total = vec4<f32>(); // of this slice's keys
    for (var tile = first; more; tile += KEYS) {
        let seen = position >= 0;
        if (lane < KEYS) {
            starts[lane] = start;
        }
        workgroupBarrier();
        // unroll k 2
        let start_$k = starts[team + $ku * TEAMS];
        // unroll i EACH
        let c_$k_$i = latents[start_$k + min(part + $iu * LANES, QUADS - 1u)];
        // end
        // end
        // unroll j VALUES
        let v_$j = latents[starts[min(slice + $ju * slices, KEYS - 1u)] + column];
        // end
        position = position_of(token, tile + KEYS + lane % KEYS, end);
        start = latent_start(token, position);
        more = tile + KEYS < end && position_of(token, tile + KEYS, end) >= 0;
        // unroll k 2
        var s_$k = vec4<f32>();
        // unroll i EACH
        s_$k += vec4<f32>(
            dot(q_0_$i, c_$k_$i), dot(q_1_$i, c_$k_$i), dot(q_2_$i, c_$k_$i), dot(q_3_$i, c_$k_$i)
        );
        // end
        partial[(team + $ku * TEAMS) * LANES + part] = s_$k;
        // end
        workgroupBarrier();
        if (lane < KEYS) {
            var a = vec4<f32>();
            var b = vec4<f32>();
            // Each thread begins elsewhere, against bank conflicts.
            // unroll i 16
            a += partial[lane * LANES + (lane + $iu) % LANES];
            b += partial[lane * LANES + (lane + $iu + 16u) % LANES];
            // end
            scores[lane] = select(vec4<f32>(LOWEST), a + b, seen);
        }
        workgroupBarrier();
        if (lane < KEYS) {
            var higher = peak;
            // unroll k 16
            higher = max(higher, scores[$k]);
            // end
            let own = scores[lane];
            weights[lane] = select(vec4<f32>(), exp(own - higher), own > vec4<f32>(LOWEST));
            if (lane == 0u) {
                kept = exp(peak - higher);
            }
            peak = higher;
        }
        workgroupBarrier();
        let scale = kept;
        total *= scale;
        // unroll h 4
        acc_$h *= scale[$h];
        // end
        // unroll j VALUES
        let w_$j = weight(slice + $ju * slices);
        total += w_$j;
        // unroll h 4
        acc_$h += w_$j[$h] * v_$j;
        // end
        // end
    }
    // Slices past KEYS have no keys.
    let used = min(slices, KEYS);
    if (column == 0u && slice < used) {
        scores[slice] = total;
    }
    if (lane == 0u) {
        highest = peak;
    }
    join(group, used, 0u, acc_0, acc_1, lane);
    join(group, used, 2u, acc_2, acc_3, lane);
}

// The position of a row's key; -1 for none and those beyond the end.
fn position_of(token: u32, key: u32, end: u32) -> i32 {
    return select(-1, key_position(token, min(key, end - 1u)), key < end);
}

fn query(start: u32, quad: u32) -> vec4<f32> {
    return select(vec4<f32>(), queries[start + min(quad, QUADS - 1u)], quad < QUADS);
}

fn weight(key: u32) -> vec4<f32> {
    return select(vec4<f32>(), weights[min(key, KEYS - 1u)], key < KEYS);
}

// What the slices summed for two heads.
fn join(group: vec3<u32>, used: u32, h: u32, a: vec4<f32>, b: vec4<f32>, lane: u32) {
    partial[lane] = a;
    partial[256u + lane] = b;
    workgroupBarrier();
    for (var i = lane; i < 2u * RANK_QUADS; i += 256u) {
        let other = i / RANK_QUADS;
        let head = 4u * group.x + h + other;
        var sum = vec4<f32>();
        var total = vec4<f32>();
        for (var j = 0u; j < used; j++) {
            sum += partial[256u * other + j * RANK_QUADS + i % RANK_QUADS];
            total += scores[j];
        }
        let peaks = highest;
        if (head < HEADS) {
            let ends = vec2<f32>(peaks[h + other], total[h + other]);
            store_sum(group.y * HEADS + head, group.z, i % RANK_QUADS, sum, ends);
        }
    }
    workgroupBarrier();
}
