// Σ q x over a block of unsigned nibbles: low halves are elements 0 … 15, high halves 16 … 31.
fn nibbles_dot(nibbles: vec4<u32>, x: Input) -> f32 {
    let low = nibbles & vec4<u32>(0x0f0f0f0fu);
    let high = (nibbles >> vec4<u32>(4u)) & vec4<u32>(0x0f0f0f0fu);
    return dot(bytes(low.x), x.z0) + dot(bytes(low.y), x.z1)
        + dot(bytes(low.z), x.z2) + dot(bytes(low.w), x.z3)
        + dot(bytes(high.x), x.z4) + dot(bytes(high.y), x.z5)
        + dot(bytes(high.z), x.z6) + dot(bytes(high.w), x.z7);
}
