// Software adapters: a thread owns a part of a head for four tokens, without a barrier.
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
