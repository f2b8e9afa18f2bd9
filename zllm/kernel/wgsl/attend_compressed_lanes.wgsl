// Software adapters: LANES lanes share a query's keys, four at a time each, without a barrier. Each
// keeps its own running maximum, total and sum of keys; they meet at the end.
fn attend(unit: u32, lane: u32, lanes: u32) {
    let row = unit / HEADS;
    let head = unit % HEADS;
    if (row >= u32(step[VALID_ROWS])) {
        return;
    }
    let seq = u32(step[SEQ + row]);
    let position = u32(step[POSITION + row]);
    let count = all_keys(position);
    let origin = (Q_OFFSET + row * Q_STRIDE) / 4u + head * QUADS;
    var peak = select(LOWEST, sinks[head], lane == 0u);
    var total = select(0.0, 1.0, lane == 0u);
    var acc = array<vec4<f32>, 128>();
    for (var i = 4u * lane; i < count; i += 4u * lanes) {
        var at: vec4<u32>;
        for (var j = 0u; j < 4u; j++) {
            at[j] = NOWHERE;
            if (i + j < count) {
                at[j] = place(row, seq, position, i + j);
            }
        }
        var scores = vec4<f32>();
        for (var k = 0u; k < QUADS; k++) {
            let query = q[origin + k];
            scores += vec4<f32>(
                dot(query, key_quad(at.x, k)), dot(query, key_quad(at.y, k)),
                dot(query, key_quad(at.z, k)), dot(query, key_quad(at.w, k))
            );
        }
        let seen = at != vec4<u32>(NOWHERE);
        scores = select(vec4<f32>(LOWEST), scores * SCALE, seen);
        let higher = max(max(peak, max(scores.x, scores.y)), max(scores.z, scores.w));
        let weights = select(vec4<f32>(), exp(scores - higher), seen);
        let kept = exp(peak - higher);
        peak = higher;
        total = total * kept + dot(weights, vec4<f32>(1.0));
        for (var k = 0u; k < QUADS; k++) {
            acc[k] = acc[k] * kept + weights.x * key_quad(at.x, k) + weights.y * key_quad(at.y, k)
                + weights.z * key_quad(at.z, k) + weights.w * key_quad(at.w, k);
        }
    }
    let highest = lanes_max(peak);
    let kept = exp(peak - highest);
    let scale = kept / lanes_sum(vec4<f32>(total * kept)).x;
    let to = (OUT_OFFSET + row * OUT_STRIDE) / 4u + head * QUADS;
    for (var k = 0u; k < QUADS; k++) {
        let sum = lanes_sum(acc[k] * scale);
        if (lane == 0u) {
            out[to + k] = sum;
        }
    }
}
