// Codes are E4M3 floats (zllm.quant.float8). With one more bit of exponent they are f16, 2^-8 of
// their value; ±0x7f is NaN.
const ZERO: f32 = 0.0;
const SPREAD_LOW = vec4<f32>(1.0);
const SPREAD_HIGH = SPREAD_LOW;

fn values(word: u32) -> vec4<f32> {
    let c = (vec4<u32>(word) >> vec4<u32>(0u, 8u, 16u, 24u)) & vec4<u32>(0xffu);
    let magnitude = c & vec4<u32>(0x7fu);
    let finite = ((c & vec4<u32>(0x80u)) << vec4<u32>(8u)) | (magnitude << vec4<u32>(7u));
    let h = select(finite, vec4<u32>(0x7e00u), magnitude == vec4<u32>(0x7fu));
    let low = unpack2x16float(h.x | (h.y << 16u));
    return 256.0 * vec4<f32>(low, unpack2x16float(h.z | (h.w << 16u)));
}

fn spread_values(word: u32) -> vec4<f32> {
    return values(word);
}
