// Codes are E5M2 floats (zllm.quant.float8): the upper bytes of f16.
const ZERO: f32 = 0.0;
const SPREAD_LOW = vec4<f32>(1.0);
const SPREAD_HIGH = SPREAD_LOW;

fn values(word: u32) -> vec4<f32> {
    let low = unpack2x16float(((word & 0xffu) << 8u) | ((word & 0xff00u) << 16u));
    return vec4<f32>(low, unpack2x16float(((word >> 8u) & 0xff00u) | (word & 0xff000000u)));
}

fn spread_values(word: u32) -> vec4<f32> {
    return values(word);
}
