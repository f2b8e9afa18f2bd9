// Software adapters: a thread scores four keys of a row.
@compute @workgroup_size(8)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    for (var i = id.y; i < ROWS; i += groups.y) {
        let count = scored(BEGIN + i);
        for (var key = 4u * id.x; key < count; key += 32u * groups.x) {
            score_four(BEGIN + i, i * SCORES_STRIDE + key, key, count);
        }
    }
}

fn score_four(row: u32, to: u32, key: u32, count: u32) {
    let k0 = key_start(row, key);
    let k1 = key_start(row, min(key + 1u, count - 1u));
    let k2 = key_start(row, min(key + 2u, count - 1u));
    let k3 = key_start(row, min(key + 3u, count - 1u));
    var sum = vec4<f32>();
    for (var head = 0u; head < HEADS; head++) {
        let origin = (Q_OFFSET + row * Q_STRIDE) / 4u + head * QUADS;
        var hits = vec4<f32>();
        for (var i = 0u; i < QUADS; i++) {
            let v = q[origin + i];
            hits += vec4<f32>(
                dot(v, keys[k0 + i]), dot(v, keys[k1 + i]),
                dot(v, keys[k2 + i]), dot(v, keys[k3 + i])
            );
        }
        let w = head_weights[WEIGHTS_OFFSET + row * WEIGHTS_STRIDE + head];
        sum += w * max(hits * SCALE, vec4<f32>());
    }
    for (var i = 0u; i < min(4u, count - key); i++) {
        scores[to + i] = sum[i];
    }
}
