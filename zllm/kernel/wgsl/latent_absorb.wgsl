// What both shapes of absorption share. Queries that meet latents: [Uᵀ q_nope | q_rope] of each row
// and head, times SCALE. U_h are the first NOPE of each NOPE + VALUE rows of the matrix.
@group(0) @binding(1) var<storage, read> q: array<f32>;
@group(0) @binding(2) var<storage, read> step: array<i32>;
@group(0) @binding(3) var<storage, read_write> queries: array<vec4<f32>>; // [TOKENS, H, QUADS]

override HEADS: u32;
override NOPE: u32;
override VALUE: u32;
override RANK_QUADS: u32;
override QUADS: u32; // of a latent and its rotated key
override SCALE: f32;
override FIRST_ROW: u32; // of the round, where these TOKENS rows begin
override TOKENS: u32;
override VALID_ROWS: u32; // offset of a step word
override Q_OFFSET: u32;
override Q_STRIDE: u32;

fn q_start(token: u32, head: u32) -> u32 {
    let row = FIRST_ROW + min(token, TOKENS - 1u);
    return Q_OFFSET + row * Q_STRIDE + head * (NOPE + 4u * (QUADS - RANK_QUADS));
}

fn store_quad(token: u32, head: u32, quad: u32, sum: vec4<f32>) {
    if (quad < RANK_QUADS && token < TOKENS) {
        queries[(token * HEADS + head) * QUADS + quad] = SCALE * sum;
    }
}

// Quad `quad` of the rotated part.
fn copy_rotated(token: u32, head: u32, quad: u32) {
    if (token < TOKENS) {
        let i = q_start(token, head) + NOPE + 4u * quad;
        let to = (token * HEADS + head) * QUADS + RANK_QUADS + quad;
        queries[to] = SCALE * vec4<f32>(q[i], q[i + 1u], q[i + 2u], q[i + 3u]);
    }
}
