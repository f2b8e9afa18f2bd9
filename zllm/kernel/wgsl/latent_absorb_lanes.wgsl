// Software adapters: a thread owns a part of a head for four tokens, without a barrier.
struct Sums { // of four tokens
    a: mat2x4<f32>,
    b: mat2x4<f32>,
    c: mat2x4<f32>,
    d: mat2x4<f32>,
}

@compute @workgroup_size(8)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let token = 4u * id.y;
    let head = id.z;
    let part = id.x;
    if (part >= BLOCKS * PARTS || FIRST_ROW + token >= u32(step[VALID_ROWS])) {
        return;
    }
    let sums = absorb(token, head, part, 0u, 1u);
    let quads = part_quads(part);
    store_quad(token, head, quads.x, sums.a[0]);
    store_quad(token, head, quads.y, sums.a[1]);
    if (TOKENS > 1u) {
        store_quad(token + 1u, head, quads.x, sums.b[0]);
        store_quad(token + 1u, head, quads.y, sums.b[1]);
        store_quad(token + 2u, head, quads.x, sums.c[0]);
        store_quad(token + 2u, head, quads.y, sums.c[1]);
        store_quad(token + 3u, head, quads.x, sums.d[0]);
        store_quad(token + 3u, head, quads.y, sums.d[1]);
    }
    let rotated = QUADS - RANK_QUADS;
    if (part == 0u) {
        for (var i = 0u; i < 4u * rotated; i++) {
            copy_rotated(token + i / rotated, head, i % rotated);
        }
    }
}

// Part `part` of every `stride`-th row of U_h, weighted by q of tokens `token` … `token` + 3.
fn absorb(token: u32, head: u32, part: u32, first: u32, stride: u32) -> Sums {
    let a = q_start(token, head);
    let b = q_start(token + 1u, head);
    let c = q_start(token + 2u, head);
    let d = q_start(token + 3u, head);
    let matrix_row = head * (NOPE + VALUE);
    var sums: Sums;
    for (var i = first; i < NOPE; i += stride) {
        let w = decode(row_start(matrix_row + i), part);
        sums.a += w * q[a + i];
        if (TOKENS > 1u) {
            sums.b += w * q[b + i];
            sums.c += w * q[c + i];
            sums.d += w * q[d + i];
        }
    }
    return sums;
}
