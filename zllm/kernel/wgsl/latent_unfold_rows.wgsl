// GPUs: a workgroup owns four rows of a head and eight tokens; each decoded weight meets all.
fn run(group: vec3<u32>, groups: vec3<u32>, lane: u32, size: u32) {
    let token = 8u * group.y;
    if (!valid(token)) {
        return;
    }
    let row = 4u * group.x;
    let head = group.z;
    let r0 = value_start(head, row);
    let r1 = value_start(head, row + 1u);
    let r2 = value_start(head, row + 2u);
    let r3 = value_start(head, row + 3u);
    var acc = array<vec4<f32>, 8>(); // one component a row
    for (var p = lane; p < BLOCKS * PARTS; p += THREADS) {
        let quads = part_quads(p);
        let w0 = decode(r0, p);
        let w1 = decode(r1, p);
        let w2 = decode(r2, p);
        let w3 = decode(r3, p);
        for (var t = 0u; t < min(8u, TOKENS); t++) {
            let a = x4(x_row(token + t, head), quads.x);
            let b = x4(x_row(token + t, head), quads.y);
            acc[t] += vec4<f32>(
                dot(w0[0], a) + dot(w0[1], b), dot(w1[0], a) + dot(w1[1], b),
                dot(w2[0], a) + dot(w2[1], b), dot(w3[0], a) + dot(w3[1], b)
            );
        }
    }
    for (var t = 0u; t < min(8u, TOKENS); t++) {
        let y = reduce_sum(acc[t], lane, size);
        if (lane < 4u) {
            store(token + t, head, row + lane, y[lane]);
        }
    }
}
