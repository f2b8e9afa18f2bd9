// GPUs: a workgroup owns one query and one split of its positions, THREADS positions at a time.
// With several splits it leaves (maximum, total) and unscaled sums in `out` for attend_combine.
override SPLITS: u32;
override SPLIT_POSITIONS: u32; // a multiple of THREADS

var<workgroup> weights: array<f32, 256>;
var<workgroup> entries: array<u32, 256>;
var<workgroup> slices: array<vec4<f32>, 256>;

fn run(group: vec3<u32>, groups: vec3<u32>, lane: u32, size: u32) {
    let head = group.x;
    let row = group.y;
    if (row >= u32(step[VALID_ROWS])) {
        return;
    }
    let g = head * KV_HEADS / HEADS;
    let seq = u32(step[SEQ + row]);
    let last = u32(step[POSITION + row]);
    let first = first_seen(last) + group.z * SPLIT_POSITIONS;
    let end = min(last + 1u, first + SPLIT_POSITIONS);
    let origin = (Q_OFFSET + row * Q_STRIDE) / 4u + head * QUADS;
    // A thread sums the values of every SLICES-th position, four numbers of each.
    let slice_count = THREADS / QUADS;
    let slice = lane / QUADS;
    let quad = lane % QUADS;
    let start = begin(head, group.z == 0u);
    var peak = start.x;
    var total = start.y;
    var acc = vec4<f32>();
    for (var tile = first; tile < end; tile += THREADS) {
        let position = tile + lane;
        var score = LOWEST;
        if (position < end) {
            let e = entry(seq, position, g);
            entries[lane] = e;
            var sum = 0.0;
            for (var i = 0u; i < QUADS; i++) {
                sum += dot(q[origin + i], keys[e + i]);
            }
            score = sum * SCALE;
        }
        let higher = max(peak, reduce_max(score, lane, size));
        let weight = select(0.0, exp(score - higher), position < end);
        weights[lane] = weight;
        let kept = exp(peak - higher);
        peak = higher;
        total = total * kept + reduce_sum(vec4<f32>(weight), lane, size).x;
        acc *= kept;
        if (slice < slice_count) {
            for (var i = slice; i < min(THREADS, end - tile); i += slice_count) {
                acc += weights[i] * values[entries[i] + quad];
            }
        }
        workgroupBarrier();
    }
    slices[lane] = acc;
    workgroupBarrier();
    if (lane < QUADS) {
        var sum = slices[lane];
        for (var i = 1u; i < slice_count; i++) {
            sum += slices[lane + i * QUADS];
        }
        if (SPLITS == 1u) {
            out[(OUT_OFFSET + row * OUT_STRIDE) / 4u + head * QUADS + lane] = sum / total;
        } else {
            let to = ((row * HEADS + head) * SPLITS + group.z) * (QUADS + 1u);
            out[to + 1u + lane] = sum;
            if (lane == 0u) {
                out[to] = vec4<f32>(peak, total, 0.0, 0.0);
            }
        }
    }
}
