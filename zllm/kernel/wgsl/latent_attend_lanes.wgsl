// Software adapters: LANES lanes share the numbers of the latents for a row, head and split, four
// keys at a time, without a barrier.
fn attend(part: u32, lane: u32, lanes: u32) {
    let unit = part / SPLITS;
    let first = part % SPLITS * SPLIT_KEYS;
    let token = unit / HEADS;
    if (token >= TOKENS || !valid(token)) {
        return;
    }
    let query = unit * QUADS;
    let end = min(key_count(token), first + SPLIT_KEYS);
    var peak = LOWEST;
    var total = 0.0;
    var acc = array<vec4<f32>, 128>(); // of quads lane + j·lanes
    for (var k = first; k < end; k += 4u) {
        let p0 = key_position(token, k);
        let p1 = key_position(token, min(k + 1u, end - 1u));
        let p2 = key_position(token, min(k + 2u, end - 1u));
        let p3 = key_position(token, min(k + 3u, end - 1u));
        if (p0 < 0) {
            break; // padding comes last
        }
        let e0 = latent_start(token, p0);
        let e1 = latent_start(token, p1);
        let e2 = latent_start(token, p2);
        let e3 = latent_start(token, p3);
        var scores = vec4<f32>();
        for (var i = lane; i < QUADS; i += lanes) {
            let q = queries[query + i];
            scores += vec4<f32>(
                dot(q, latents[e0 + i]), dot(q, latents[e1 + i]),
                dot(q, latents[e2 + i]), dot(q, latents[e3 + i])
            );
        }
        let within = (vec4<u32>(k) + vec4<u32>(0u, 1u, 2u, 3u)) < vec4<u32>(end);
        let seen = within & (vec4<i32>(p0, p1, p2, p3) >= vec4<i32>());
        scores = select(vec4<f32>(LOWEST), lanes_sum(scores), seen);
        let higher = max(max(peak, max(scores.x, scores.y)), max(scores.z, scores.w));
        let weights = select(vec4<f32>(), exp(scores - higher), seen);
        let kept = exp(peak - higher);
        peak = higher;
        total = total * kept + dot(weights, vec4<f32>(1.0));
        for (var j = 0u; j < (RANK_QUADS + lanes - 1u) / lanes; j++) {
            let i = min(lane + j * lanes, RANK_QUADS - 1u);
            acc[j] = acc[j] * kept
                + weights.x * latents[e0 + i] + weights.y * latents[e1 + i]
                + weights.z * latents[e2 + i] + weights.w * latents[e3 + i];
        }
    }
    for (var j = 0u; j < (RANK_QUADS + lanes - 1u) / lanes; j++) {
        if (lane + j * lanes < RANK_QUADS) {
            store_sum(unit, part % SPLITS, lane + j * lanes, acc[j], vec2<f32>(peak, total));
        }
    }
}
