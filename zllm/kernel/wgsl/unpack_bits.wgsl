// Four bytes of a word as floats: put under the exponents of 2^23 and 2^15, which are then taken
// away, exactly. Two plain instructions a byte; conversions of integers have a pipe of a quarter
// the width on NVIDIA's GPUs.
const SPREAD_LOW = vec4<f32>(1.0);
const SPREAD_HIGH = SPREAD_LOW;

fn spread_bytes(word: u32) -> vec4<f32> {
    return bytes(word);
}

fn bytes(word: u32) -> vec4<f32> {
    let upper = word >> 16u;
    let bits = vec4<u32>(word & 0xffu, word & 0xff00u, upper & 0xffu, upper & 0xff00u);
    let exponents = vec4<u32>(0x4b000000u, 0x47000000u, 0x4b000000u, 0x47000000u);
    return bitcast<vec4<f32>>(bits | exponents) - vec4<f32>(0x1p23, 0x1p15, 0x1p23, 0x1p15);
}
