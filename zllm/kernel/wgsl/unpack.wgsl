// Four bytes of a word as floats: GPUs convert a byte in one instruction.
const SPREAD_LOW = vec4<f32>(1.0);
const SPREAD_HIGH = SPREAD_LOW;

fn spread_bytes(word: u32) -> vec4<f32> {
    return bytes(word);
}

fn bytes(word: u32) -> vec4<f32> {
    return vec4<f32>(
        f32(word & 0xffu), f32((word >> 8u) & 0xffu), f32((word >> 16u) & 0xffu), f32(word >> 24u)
    );
}
