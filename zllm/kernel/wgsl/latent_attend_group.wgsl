// GPUs: a workgroup owns a row, sixteen of its heads and one split of its keys, 64 keys at a time.
// Scores: a thread owns four heads by two keys. Sums: a thread owns four numbers of the latent of
// every SLICES-th key, for all heads. SPLIT_KEYS is a multiple of KEYS.
const KEYS: u32 = 64u;
const CHUNK: u32 = 8u; // quads staged at a time
const KEY_QUADS: u32 = 9u; // of a staged key: one against bank conflicts

var<workgroup> staged: array<vec4<f32>, 576>; // KEYS · KEY_QUADS
var<workgroup> weights: array<vec4<f32>, 256>; // four heads; [KEYS, 4]
var<workgroup> partial: array<vec4<f32>, 128>;
var<workgroup> starts: array<u32, 64>;
var<workgroup> kept: array<vec4<f32>, 4>;
var<workgroup> peaks: array<vec4<f32>, 4>;

@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let token = group.y;
    if (!valid(token)) {
        return;
    }
    let first = group.z * SPLIT_KEYS;
    let end = min(key_count(token), first + SPLIT_KEYS);
    let four = lane / 32u;
    let slices = 128u / RANK_QUADS;
    let slice = lane / RANK_QUADS;
    let column = lane % RANK_QUADS;
    var peak = vec4<f32>(LOWEST); // of this thread's four heads
    var total = vec4<f32>();
    var acc0 = mat4x4<f32>(); // a column a head
    var acc1 = mat4x4<f32>();
    var acc2 = mat4x4<f32>();
    var acc3 = mat4x4<f32>();
    for (var tile = first; tile < end; tile += KEYS) {
        if (HAS_CHOSEN && key_position(token, tile) < 0) {
            break; // padding comes last
        }
        let scores = score(token, 16u * group.x + 4u * four, tile, end, lane);
        partial[lane] = max(scores[0], scores[1]);
        workgroupBarrier();
        var higher = peak;
        for (var i = 0u; i < 32u; i++) {
            higher = max(higher, partial[32u * four + i]);
        }
        workgroupBarrier();
        let w0 = weigh(scores[0], higher);
        let w1 = weigh(scores[1], higher);
        weights[4u * (lane % 32u) + four] = w0;
        weights[4u * (lane % 32u + 32u) + four] = w1;
        partial[lane] = w0 + w1;
        let scale = exp(peak - higher);
        if (lane % 32u == 0u) {
            kept[four] = scale;
        }
        workgroupBarrier();
        peak = higher;
        total *= scale;
        for (var i = 0u; i < 32u; i++) {
            total += partial[32u * four + i];
        }
        acc0 = scaled(acc0, kept[0]);
        acc1 = scaled(acc1, kept[1]);
        acc2 = scaled(acc2, kept[2]);
        acc3 = scaled(acc3, kept[3]);
        if (slice < slices) {
            // Keys beyond the end weigh nothing. Four at a time, as each load takes long.
            var k = slice;
            for (; k + 3u * slices < KEYS; k += 4u * slices) {
                let k1 = k + slices;
                let k2 = k1 + slices;
                let k3 = k2 + slices;
                let c0 = latents[starts[k] + column];
                let c1 = latents[starts[k1] + column];
                let c2 = latents[starts[k2] + column];
                let c3 = latents[starts[k3] + column];
                acc0 += four_keys(c0, c1, c2, c3, vec4<u32>(k, k1, k2, k3) * 4u);
                acc1 += four_keys(c0, c1, c2, c3, vec4<u32>(k, k1, k2, k3) * 4u + 1u);
                acc2 += four_keys(c0, c1, c2, c3, vec4<u32>(k, k1, k2, k3) * 4u + 2u);
                acc3 += four_keys(c0, c1, c2, c3, vec4<u32>(k, k1, k2, k3) * 4u + 3u);
            }
            for (; k < KEYS; k += slices) {
                let c = latents[starts[k] + column];
                acc0 += outer(c, weights[4u * k]);
                acc1 += outer(c, weights[4u * k + 1u]);
                acc2 += outer(c, weights[4u * k + 2u]);
                acc3 += outer(c, weights[4u * k + 3u]);
            }
        }
        workgroupBarrier();
    }
    if (lane % 32u == 0u) {
        kept[four] = total;
        peaks[four] = peak;
    }
    finish(group, 0u, acc0, lane);
    finish(group, 1u, acc1, lane);
    finish(group, 2u, acc2, lane);
    finish(group, 3u, acc3, lane);
}

// Scores of heads `head` … `head` + 3 with two keys; LOWEST of those that the row does not see.
fn score(token: u32, head: u32, tile: u32, end: u32, lane: u32) -> mat2x4<f32> {
    if (lane < KEYS) {
        starts[lane] = latent_start(token, key_position(token, min(tile + lane, end - 1u)));
    }
    let q0 = query_start(token, head);
    let q1 = query_start(token, head + 1u);
    let q2 = query_start(token, head + 2u);
    let q3 = query_start(token, head + 3u);
    let key = lane % 32u;
    var s0 = vec4<f32>();
    var s1 = vec4<f32>();
    workgroupBarrier();
    var next = load(0u, lane);
    for (var chunk = 0u; chunk < QUADS; chunk += CHUNK) {
        let to = lane / CHUNK * KEY_QUADS + lane % CHUNK;
        staged[to] = next[0];
        staged[to + 16u * KEY_QUADS] = next[1];
        staged[to + 32u * KEY_QUADS] = next[2];
        staged[to + 48u * KEY_QUADS] = next[3];
        workgroupBarrier();
        if (chunk + CHUNK < QUADS) {
            next = load(chunk + CHUNK, lane); // on its way while this one is multiplied
        }
        for (var i = 0u; i < CHUNK; i++) {
            let c0 = staged[key * KEY_QUADS + i];
            let c1 = staged[(key + 32u) * KEY_QUADS + i];
            let quad = min(chunk + i, QUADS - 1u); // what is staged beyond is zero
            let a = queries[q0 + quad];
            let b = queries[q1 + quad];
            let c = queries[q2 + quad];
            let d = queries[q3 + quad];
            s0 += vec4<f32>(dot(a, c0), dot(b, c0), dot(c, c0), dot(d, c0));
            s1 += vec4<f32>(dot(a, c1), dot(b, c1), dot(c, c1), dot(d, c1));
        }
        workgroupBarrier();
    }
    if (!sees(token, tile + key, end)) {
        s0 = vec4<f32>(LOWEST);
    }
    if (!sees(token, tile + key + 32u, end)) {
        s1 = vec4<f32>(LOWEST);
    }
    return mat2x4<f32>(s0, s1);
}

// A quad of keys k, k + 16, k + 32 and k + 48 for k = lane / CHUNK.
fn load(chunk: u32, lane: u32) -> mat4x4<f32> {
    let quad = chunk + lane % CHUNK;
    if (quad >= QUADS) {
        return mat4x4<f32>();
    }
    let k = lane / CHUNK;
    return mat4x4<f32>(
        latents[starts[k] + quad], latents[starts[k + 16u] + quad],
        latents[starts[k + 32u] + quad], latents[starts[k + 48u] + quad]
    );
}

fn query_start(token: u32, head: u32) -> u32 {
    return (token * HEADS + min(head, HEADS - 1u)) * QUADS;
}

fn sees(token: u32, key: u32, end: u32) -> bool {
    return key < end && key_position(token, min(key, end - 1u)) >= 0;
}

fn weigh(score: vec4<f32>, peak: vec4<f32>) -> vec4<f32> {
    return select(vec4<f32>(), exp(score - peak), score > vec4<f32>(LOWEST));
}

fn scaled(m: mat4x4<f32>, by: vec4<f32>) -> mat4x4<f32> {
    return mat4x4<f32>(m[0] * by.x, m[1] * by.y, m[2] * by.z, m[3] * by.w);
}

fn four_keys(
    c0: vec4<f32>, c1: vec4<f32>, c2: vec4<f32>, c3: vec4<f32>, at: vec4<u32>
) -> mat4x4<f32> {
    return outer(c0, weights[at.x]) + outer(c1, weights[at.y])
        + outer(c2, weights[at.z]) + outer(c3, weights[at.w]);
}

fn outer(c: vec4<f32>, w: vec4<f32>) -> mat4x4<f32> {
    return mat4x4<f32>(c * w.x, c * w.y, c * w.z, c * w.w);
}

// Joins what the slices summed for four heads. Reuses `staged`, which nobody reads any more.
fn finish(group: vec3<u32>, four: u32, sums: mat4x4<f32>, lane: u32) {
    staged[lane] = sums[0];
    staged[128u + lane] = sums[1];
    staged[256u + lane] = sums[2];
    staged[384u + lane] = sums[3];
    workgroupBarrier();
    for (var i = lane; i < 4u * RANK_QUADS; i += 128u) {
        let h = i / RANK_QUADS;
        let head = 16u * group.x + 4u * four + h;
        if (head < HEADS) {
            var sum = vec4<f32>();
            for (var j = i % RANK_QUADS; j / RANK_QUADS < 128u / RANK_QUADS; j += RANK_QUADS) {
                sum += staged[128u * h + j];
            }
            let unit = group.y * HEADS + head;
            store_sum(unit, group.z, i % RANK_QUADS, sum, vec2<f32>(peaks[four][h], kept[four][h]));
        }
    }
    workgroupBarrier();
}
