// Software adapters: a thread owns a row of a head and four tokens, without a barrier.
@compute @workgroup_size(8)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let row = id.x;
    let token = 4u * id.y;
    if (row >= VALUE || !valid(token)) {
        return;
    }
    let head = id.z;
    let start = value_start(head, row);
    var acc = vec4<f32>(); // one component a token
    for (var p = 0u; p < BLOCKS * PARTS; p++) {
        let w = decode(start, p);
        let quads = part_quads(p);
        for (var t = 0u; t < min(4u, TOKENS); t++) {
            let x = x_row(token + t, head);
            acc[t] += dot(w[0], x4(x, quads.x)) + dot(w[1], x4(x, quads.y));
        }
    }
    for (var t = 0u; t < min(4u, TOKENS); t++) {
        store(token + t, head, row, acc[t]);
    }
}
