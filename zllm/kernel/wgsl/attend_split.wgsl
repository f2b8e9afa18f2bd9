// GPUs, one query a sequence: a workgroup owns up to four query heads of one key/value head, so
// that a key is read once for all of them, and one split of the positions. With several splits it
// leaves (maximum, total) and unscaled sums in `out` for attend_combine. Text: BLOCK query heads of
// a workgroup, STEPS reads of a key by one thread, TRIPS values that a thread sums in a tile.
override THREADS: u32; // 128 or 256
override BLOCKS: u32; // workgroups that share a key/value head
override SPLITS: u32;

const LANES: u32 = 2u; // threads that read one key
const EACH: u32 = 4u; // scores of a thread in the softmax

var<workgroup> queries: array<vec4<f32>, BLOCK * QUADS>;
var<workgroup> partial: array<f32, BLOCK * THREADS>; // scores before LANES are joined
var<workgroup> weights: array<f32, BLOCK * THREADS / LANES>;
var<workgroup> tops: array<f32, THREADS>;
var<workgroup> kept: array<f32, BLOCK>;
var<workgroup> entries: array<u32, THREADS / LANES>;
var<workgroup> slices: array<vec4<f32>, THREADS>;

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
    // unroll h BLOCK
    // unroll j READ_QUADS
    var acc_$h_$j = vec4<f32>();
    // end
    // end
    workgroupBarrier();
    for (var tile = dealt.x; tile < dealt.y; tile += tile_size) {
        // Past the end the last position stands in, with a weight of 0.
        let p = lane / LANES;
        let e = entry(seq, min(tile + p, dealt.y - 1u), g);
        score(e, p, lane % LANES);
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
        // unroll h BLOCK
        let kept_$h = kept[$h];
        // unroll j READ_QUADS
        acc_$h_$j *= kept_$h;
        // end
        // end
        if (slice < stride) {
            // unroll n TRIPS
            let i_$n = slice + $nu * stride;
            if (i_$n < tile_size) {
                let v = value(entries[i_$n] + lane % reads());
                // unroll h BLOCK
                let weight_$h = weights[$hu * tile_size + i_$n];
                // unroll j READ_QUADS
                acc_$h_$j += weight_$h * v[$j];
                // end
                // end
            }
            // end
        }
    }
    workgroupBarrier();
    tops[lane] = total;
    if (lane % share == 0u && lane / share < BLOCK) {
        kept[head] = peak;
    }
    // unroll h BLOCK
    if ($hu < count) {
        // unroll j READ_QUADS
        slices[lane] = acc_$h_$j;
        workgroupBarrier();
        if (lane < reads()) {
            leave(row, first_head + $hu, to + $hu * SPLITS, $hu, lane, $ju);
        }
        workgroupBarrier();
        // end
    }
    // end
}

// This lane's part of the products of a key with each query.
fn score(e: u32, p: u32, lane: u32) {
    // unroll h BLOCK
    var sum_$h = 0.0;
    // end
    // unroll n STEPS
    let i_$n = $nu * LANES + lane;
    if (i_$n < reads()) {
        let k = key(e + i_$n);
        // unroll h BLOCK
        // unroll j READ_QUADS
        sum_$h += dot(queries[$hu * QUADS + i_$n * READ_QUADS + $ju], k[$j]);
        // end
        // end
    }
    // end
    // unroll h BLOCK
    partial[$hu * THREADS + lane * (THREADS / LANES) + p] = sum_$h;
    // end
}

// One quad of a head's result: quad j of a read.
fn leave(row: u32, head: u32, part: u32, h: u32, read: u32, j: u32) {
    var sum = slices[read];
    for (var i = 1u; i < THREADS / reads(); i++) {
        sum += slices[read + i * reads()];
    }
    let quad = read * READ_QUADS + j;
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
