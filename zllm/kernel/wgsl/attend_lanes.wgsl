// Software adapters: LANES lanes share a query's positions, four at a time each, without a barrier.
// Each keeps its own running maximum, total and sum of values; they meet at the end. With several
// splits (maximum, total) and unscaled sums go to `out` for attend_combine.
override SPLITS: u32;

fn attend(unit: u32, lane: u32, lanes: u32) {
    let split = unit % SPLITS;
    let row = unit / SPLITS / HEADS;
    let head = unit / SPLITS % HEADS;
    if (row >= u32(step[VALID_ROWS])) {
        return;
    }
    let g = head * KV_HEADS / HEADS;
    let seq = u32(step[SEQ + row]);
    let last = u32(step[POSITION + row]);
    let origin = (Q_OFFSET + row * Q_STRIDE) / 4u + head * QUADS;
    let dealt = deal(first_seen(last), last + 1u, 4u * lanes, split, SPLITS);
    let start = begin(head, split == 0u && lane == 0u);
    var peak = start.x;
    var total = start.y;
    var acc = array<vec4<f32>, 64>();
    for (var p = dealt.x + 4u * lane; p < dealt.y; p += 4u * lanes) {
        let e0 = entry(seq, p, g);
        let e1 = entry(seq, min(p + 1u, last), g);
        let e2 = entry(seq, min(p + 2u, last), g);
        let e3 = entry(seq, min(p + 3u, last), g);
        var scores = vec4<f32>();
        for (var i = 0u; i < reads(); i++) {
            var k0 = key(e0 + i);
            var k1 = key(e1 + i);
            var k2 = key(e2 + i);
            var k3 = key(e3 + i);
            for (var j = 0u; j < READ_QUADS; j++) {
                let query = q[origin + i * READ_QUADS + j];
                scores += vec4<f32>(
                    dot(query, k0[j]), dot(query, k1[j]), dot(query, k2[j]), dot(query, k3[j])
                );
            }
        }
        let seen = (vec4<u32>(p) + vec4<u32>(0u, 1u, 2u, 3u)) <= vec4<u32>(last);
        scores = select(vec4<f32>(LOWEST), scores * SCALE, seen);
        let higher = max(max(peak, max(scores.x, scores.y)), max(scores.z, scores.w));
        let weights = select(vec4<f32>(), exp(scores - higher), seen);
        let kept = exp(peak - higher);
        peak = higher;
        total = total * kept + dot(weights, vec4<f32>(1.0));
        for (var i = 0u; i < reads(); i++) {
            var v0 = value(e0 + i);
            var v1 = value(e1 + i);
            var v2 = value(e2 + i);
            var v3 = value(e3 + i);
            for (var j = 0u; j < READ_QUADS; j++) {
                let sum = weights.x * v0[j] + weights.y * v1[j] + weights.z * v2[j]
                    + weights.w * v3[j];
                acc[i * READ_QUADS + j] = acc[i * READ_QUADS + j] * kept + sum;
            }
        }
    }
    let highest = lanes_max(peak);
    let kept = exp(peak - highest);
    let sum = lanes_sum(vec4<f32>(total * kept)).x;
    var to = (OUT_OFFSET + row * OUT_STRIDE) / 4u + head * QUADS;
    var scale = kept / sum;
    if (SPLITS > 1u) {
        to = unit * (QUADS + 1u);
        scale = kept;
        if (lane == 0u) {
            out[to] = vec4<f32>(highest, sum, 0.0, 0.0);
        }
        to += 1u;
    }
    for (var i = 0u; i < QUADS; i++) {
        let quad = lanes_sum(acc[i] * scale);
        if (lane == 0u) {
            out[to + i] = quad;
        }
    }
}
