// The gated delta rule (zllm.attention.kda.recurrent) over the rows of each sequence. Its state is
// [HEADS, SIZE, SIZE], keys by values, and each value column goes on by itself.
//
// Mᵀk and Mᵀq are both taken of the decayed state before the write, so that one pass over it is
// enough: with M' = M + k δᵀ, M'ᵀq = Mᵀq + (k·q) δ. Norms of k and q divide the sums.
@group(0) @binding(6) var<storage, read_write> planes: array<f32>;
@group(0) @binding(7) var<storage, read_write> out: array<f32>;

override HEADS: u32;
override OUT_OFFSET: u32;
override OUT_STRIDE: u32;
override VALID_SEQS: u32;
override POSITION: u32;
override FIRST_ROW: u32;
override LAST_ROW: u32;
override READ_PLANE: u32;
override WRITTEN_PLANE: u32;

// Where a head's state begins in a plane.
fn state_at(plane: i32, head: u32) -> u32 {
    return (u32(plane) * HEADS + head) * SIZE * SIZE;
}

// What one token writes into a column, as a multiple of k, and what it reads there.
struct Change {
    written: f32,
    output: f32,
}

// From sums with raw k and q over the decayed column: dots (Mᵀk, Mᵀq), norms (k·k, q·q, k·q).
fn change(dots: vec2<f32>, norms: vec3<f32>, value: f32, write_gate: f32) -> Change {
    let scales = 1.0 / sqrt(norms.xy + NORM_EPS) * vec2<f32>(1.0, SCALE);
    let delta = logistic(write_gate) * (value - dots.x * scales.x);
    return Change(delta * scales.x, dots.y * scales.y + norms.z * scales.x * scales.y * delta);
}
