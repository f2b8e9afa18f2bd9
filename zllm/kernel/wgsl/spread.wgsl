// Four bytes of a word as floats, left in place: element i comes out 2^(8i) too large, and SPREAD,
// on the side of x, takes it back exactly. A mask and an i32 conversion are the cheapest unpacking
// on CPUs. The last byte is shifted down, for in place it could be negative.
const SPREAD = vec4<f32>(1.0, 0x1p-8, 0x1p-16, 1.0);

fn spread_bytes(word: u32) -> vec4<f32> {
    return vec4<f32>(
        f32(bitcast<i32>(word & 0xffu)), f32(bitcast<i32>(word & 0xff00u)),
        f32(bitcast<i32>(word & 0xff0000u)), f32(bitcast<i32>(word >> 24u))
    );
}

fn bytes(word: u32) -> vec4<f32> {
    return vec4<f32>((vec4<u32>(word) >> vec4<u32>(0u, 8u, 16u, 24u)) & vec4<u32>(0xffu));
}

// Σ q x over a block of unsigned nibbles: low halves are elements 0 … 15, high halves 16 … 31.
fn nibbles_dot(nibbles: vec4<u32>, x: Input) -> f32 {
    let low = nibbles & vec4<u32>(0x0f0f0f0fu);
    let high = (nibbles >> vec4<u32>(4u)) & vec4<u32>(0x0f0f0f0fu);
    return dot(spread_bytes(low.x), x.z0) + dot(spread_bytes(low.y), x.z1)
        + dot(spread_bytes(low.z), x.z2) + dot(spread_bytes(low.w), x.z3)
        + dot(spread_bytes(high.x), x.z4) + dot(spread_bytes(high.y), x.z5)
        + dot(spread_bytes(high.z), x.z6) + dot(spread_bytes(high.w), x.z7);
}
