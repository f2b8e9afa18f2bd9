// Nibbles of a word as floats, left in place: they come out 2^(8i) or 2^(8i + 4) too large, and
// SPREAD_LOW and _HIGH, on the side of x, take it back exactly. A mask and an i32 conversion are
// the cheapest unpacking on CPUs. The last one is shifted down, for in place it could be negative.
const SPREAD_LOW = vec4<f32>(1.0, 0x1p-8, 0x1p-16, 0x1p-24);
const SPREAD_HIGH = vec4<f32>(0x1p-4, 0x1p-12, 0x1p-20, 1.0);

fn bytes(word: u32) -> vec4<f32> {
    return vec4<f32>((vec4<u32>(word) >> vec4<u32>(0u, 8u, 16u, 24u)) & vec4<u32>(0xffu));
}

fn low_nibbles(word: u32) -> vec4<f32> {
    return vec4<f32>(
        f32(bitcast<i32>(word & 0xfu)), f32(bitcast<i32>(word & 0xf00u)),
        f32(bitcast<i32>(word & 0xf0000u)), f32(bitcast<i32>(word & 0xf000000u))
    );
}

fn high_nibbles(word: u32) -> vec4<f32> {
    return vec4<f32>(
        f32(bitcast<i32>(word & 0xf0u)), f32(bitcast<i32>(word & 0xf000u)),
        f32(bitcast<i32>(word & 0xf00000u)), f32(bitcast<i32>(word >> 28u))
    );
}

// Σ q x over a block of unsigned nibbles: low halves are elements 0 … 15, high halves 16 … 31.
fn nibbles_dot(nibbles: vec4<u32>, x: Input) -> f32 {
    return dot(low_nibbles(nibbles.x), x.z0) + dot(low_nibbles(nibbles.y), x.z1)
        + dot(low_nibbles(nibbles.z), x.z2) + dot(low_nibbles(nibbles.w), x.z3)
        + dot(high_nibbles(nibbles.x), x.z4) + dot(high_nibbles(nibbles.y), x.z5)
        + dot(high_nibbles(nibbles.z), x.z6) + dot(high_nibbles(nibbles.w), x.z7);
}
