// GPUs, one query a sequence: a workgroup owns up to eight query heads of one key/value head, so
// that a key is read once for all of them, and one split of the positions. With several splits it
// leaves (maximum, total) and unscaled sums in `out` for attend_combine.
override THREADS: u32; // 128 or 256
override BLOCK: u32; // query heads of a workgroup
override BLOCKS: u32; // workgroups that share a key/value head
override SPLITS: u32;

const LANES: u32 = 2u; // threads that read one key
const MOST: u32 = 8u; // query heads
const EACH: u32 = 4u; // scores of a thread in the softmax

var<workgroup> queries: array<vec4<f32>, BLOCK * QUADS>;
var<workgroup> partial: array<f32, BLOCK * THREADS>; // scores before LANES are joined
var<workgroup> weights: array<f32, BLOCK * THREADS / LANES>;
var<workgroup> tops: array<f32, THREADS>;
var<workgroup> kept: array<f32, MOST>;
var<workgroup> entries: array<u32, THREADS / LANES>;
var<workgroup> slices: array<vec4<f32>, THREADS * READ_QUADS>;

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = group.y;
    if (row >= u32(step[VALID_ROWS])) {
        return;
    }
    let shared_by = HEADS / KV_HEADS;
    let g = group.x / BLOCKS;
    let before = (group.x % BLOCKS) * BLOCK;
    let first_head = g * shared_by + before;
    let count = min(BLOCK, shared_by - before);
    let to = (row * HEADS + first_head) * SPLITS + group.z; // of the first head, in parts
    let seq = u32(step[SEQ + row]);
    let last = u32(step[POSITION + row]);
    let tile_size = THREADS / LANES;
    let dealt = deal(first_seen(last), last + 1u, tile_size, group.z, SPLITS);
    if (dealt.x >= dealt.y) {
        if (lane < count) {
            out[(to + lane * SPLITS) * (QUADS + 1u)] = vec4<f32>(LOWEST, 0.0, 0.0, 0.0);
        }
        return;
    }
    let origin = (Q_OFFSET + row * Q_STRIDE) / 4u + first_head * QUADS;
    for (var i = lane; i < count * QUADS; i += THREADS) {
        queries[i] = q[origin + i] * SCALE;
    }
    // In the softmax a head has `share` threads, each for EACH positions.
    let share = tile_size / EACH;
    let head = min(lane / share, BLOCK - 1u);
    let start = begin(first_head + min(head, count - 1u), group.z == 0u);
    var peak = start.x;
    var total = select(0.0, start.y, lane % share == 0u);
    // A thread sums one read of the values of every `stride`-th position.
    let stride = THREADS / reads();
    let slice = lane / reads();
    var acc = array<vec4<f32>, MOST * READ_QUADS>();
    workgroupBarrier();
    for (var tile = dealt.x; tile < dealt.y; tile += tile_size) {
        let p = lane / LANES;
        var e = 0u;
        if (tile + p < dealt.y) {
            e = entry(seq, tile + p, g);
            score(e, p, lane % LANES);
        }
        workgroupBarrier();
        if (lane % LANES == 0u) {
            entries[p] = e;
        }
        var scores = vec4<f32>(LOWEST);
        for (var i = 0u; i < EACH; i++) {
            let at = lane % share + i * share;
            if (tile + at < dealt.y) {
                scores[i] = partial[head * THREADS + at] + partial[head * THREADS + tile_size + at];
            }
        }
        tops[lane] = max(max(scores.x, scores.y), max(scores.z, scores.w));
        workgroupBarrier();
        var higher = peak;
        for (var i = 0u; i < share; i++) {
            higher = max(higher, tops[head * share + i]);
        }
        let keep = exp(peak - higher);
        peak = higher;
        total *= keep;
        if (lane / share < BLOCK) {
            for (var i = 0u; i < EACH; i++) {
                let at = lane % share + i * share;
                let weight = select(0.0, exp(scores[i] - higher), tile + at < dealt.y);
                weights[head * tile_size + at] = weight;
                total += weight;
            }
            if (lane % share == 0u) {
                kept[head] = keep;
            }
        }
        workgroupBarrier();
        for (var h = 0u; h < BLOCK; h++) {
            for (var j = 0u; j < READ_QUADS; j++) {
                acc[h * READ_QUADS + j] *= kept[h];
            }
        }
        if (slice < stride) {
            for (var i = slice; i < min(tile_size, dealt.y - tile); i += stride) {
                var v = value(entries[i] + lane % reads());
                for (var h = 0u; h < BLOCK; h++) {
                    let weight = weights[h * tile_size + i];
                    for (var j = 0u; j < READ_QUADS; j++) {
                        acc[h * READ_QUADS + j] += weight * v[j];
                    }
                }
            }
        }
    }
    workgroupBarrier();
    tops[lane] = total;
    for (var h = 0u; h < count; h++) {
        for (var j = 0u; j < READ_QUADS; j++) {
            slices[lane * READ_QUADS + j] = acc[h * READ_QUADS + j];
        }
        if (lane == h * share) {
            kept[h] = peak;
        }
        workgroupBarrier();
        if (lane < QUADS) {
            leave(row, first_head + h, to + h * SPLITS, h, lane);
        }
        workgroupBarrier();
    }
}

// This lane's part of the products of a key with each query.
fn score(e: u32, p: u32, lane: u32) {
    var sums = array<f32, MOST>();
    for (var n = 0u; n < (reads() + LANES - 1u) / LANES; n++) {
        let i = n * LANES + lane;
        if (i < reads()) {
            var k = key(e + i);
            for (var h = 0u; h < BLOCK; h++) {
                for (var j = 0u; j < READ_QUADS; j++) {
                    sums[h] += dot(queries[h * QUADS + i * READ_QUADS + j], k[j]);
                }
            }
        }
    }
    for (var h = 0u; h < BLOCK; h++) {
        partial[h * THREADS + lane * (THREADS / LANES) + p] = sums[h];
    }
}

// One quad of a head's result.
fn leave(row: u32, head: u32, part: u32, h: u32, quad: u32) {
    var sum = slices[quad];
    for (var i = 1u; i < THREADS / reads(); i++) {
        sum += slices[quad + i * QUADS];
    }
    let share = THREADS / LANES / EACH;
    var total = 0.0;
    for (var i = 0u; i < share; i++) {
        total += tops[h * share + i];
    }
    if (SPLITS == 1u) {
        out[(OUT_OFFSET + row * OUT_STRIDE) / 4u + head * QUADS + quad] = sum / total;
        return;
    }
    let at = part * (QUADS + 1u);
    out[at + 1u + quad] = sum;
    if (quad == 0u) {
        out[at] = vec4<f32>(kept[h], total, 0.0, 0.0);
    }
}
