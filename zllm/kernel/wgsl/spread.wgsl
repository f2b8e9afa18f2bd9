// Four bytes of a word as floats, left in place: element i comes out 2^(8i) too large, and SPREAD, on
// the side of x, takes it back exactly. A mask and an i32 conversion are the cheapest unpacking on CPUs.
const SPREAD = vec4<f32>(1.0, 0x1p-8, 0x1p-16, 0x1p-24);

// Bytes below 128.
fn spread_bytes(word: u32) -> vec4<f32> {
    return vec4<f32>(
        f32(bitcast<i32>(word & 0x7fu)), f32(bitcast<i32>(word & 0x7f00u)),
        f32(bitcast<i32>(word & 0x7f0000u)), f32(bitcast<i32>(word & 0x7f000000u))
    );
}

// The low halves of the bytes.
fn spread_nibbles(word: u32) -> vec4<f32> {
    return spread_bytes(word & 0x0f0f0f0fu);
}

fn bytes(word: u32) -> vec4<f32> {
    return vec4<f32>((vec4<u32>(word) >> vec4<u32>(0u, 8u, 16u, 24u)) & vec4<u32>(0xffu));
}
