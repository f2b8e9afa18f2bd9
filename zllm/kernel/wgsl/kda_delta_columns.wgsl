// Software adapters: a thread owns one column, which stays in the plane that is written.
override THREADS: u32;

@compute @workgroup_size(THREADS)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let head = id.x / SIZE;
    let column = id.x % SIZE;
    let seq = id.y;
    if (head >= HEADS || seq >= u32(step[VALID_SEQS])) {
        return;
    }
    let first = u32(step[FIRST_ROW + seq]);
    let to = state_at(step[WRITTEN_PLANE + seq], head) + column;
    var origin = state_at(step[READ_PLANE + seq], head) + column;
    var known = step[POSITION + first] > 0;
    for (var row = first; row <= u32(step[LAST_ROW + seq]); row++) {
        let q_at = Q_OFFSET + row * Q_STRIDE + head * SIZE;
        let k_at = K_OFFSET + row * K_STRIDE + head * SIZE;
        let g_at = G_OFFSET + row * G_STRIDE + head * SIZE;
        var dots = vec2<f32>();
        var norms = vec3<f32>();
        for (var i = 0u; i < SIZE; i++) {
            let key = k[k_at + i];
            let query = q[q_at + i];
            norms += vec3<f32>(key * key, query * query, key * query);
            var m = 0.0;
            if (known) {
                m = planes[origin + i * SIZE] * exp(g[g_at + i]);
                dots += m * vec2<f32>(key, query);
            }
            planes[to + i * SIZE] = m;
        }
        let value = v[V_OFFSET + row * V_STRIDE + head * SIZE + column];
        let now = change(dots, norms, value, beta[BETA_OFFSET + row * BETA_STRIDE + head]);
        for (var i = 0u; i < SIZE; i++) {
            planes[to + i * SIZE] += now.written * k[k_at + i];
        }
        out[OUT_OFFSET + row * OUT_STRIDE + head * SIZE + column] = now.output;
        origin = to;
        known = true;
    }
}
