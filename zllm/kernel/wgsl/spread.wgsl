// Four bytes of a word as floats, left in place: element i comes out 2^(8i) too large, and
// SPREAD_LOW and _HIGH, on the side of x, take it back exactly. A mask and an i32 conversion are
// the cheapest unpacking on CPUs. The last byte is shifted down, for in place it could be negative.
const SPREAD_LOW = vec4<f32>(1.0, 0x1p-8, 0x1p-16, 1.0);
const SPREAD_HIGH = SPREAD_LOW;

fn spread_bytes(word: u32) -> vec4<f32> {
    return vec4<f32>(
        f32(bitcast<i32>(word & 0xffu)), f32(bitcast<i32>(word & 0xff00u)),
        f32(bitcast<i32>(word & 0xff0000u)), f32(bitcast<i32>(word >> 24u))
    );
}

fn bytes(word: u32) -> vec4<f32> {
    return vec4<f32>((vec4<u32>(word) >> vec4<u32>(0u, 8u, 16u, 24u)) & vec4<u32>(0xffu));
}
