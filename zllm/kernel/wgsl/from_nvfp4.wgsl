// NVFP4 (zllm.quant.gguf_float4): 36 bytes for 64 elements, four unsigned E4M3, 32 bytes
// of nibbles.
fn code(row: u32, block: u32, e: u32) -> u32 {
    let group = block % 2u * 2u + e / 16u;
    let at = 36u * (block / 2u) + 4u + 8u * group;
    return (byte(row, at + e % 8u) >> (4u * (e / 8u % 2u))) & 15u;
}

fn scale_word(row: u32, i: u32) -> u32 {
    let at = 36u * (i / 2u) + i % 2u * 2u;
    return pack2x16float(vec2<f32>(half_scale(byte(row, at)), half_scale(byte(row, at + 1u))));
}

// Half of an unsigned E4M3; all of them are f16.
fn half_scale(code: u32) -> f32 {
    let bits = code & 0x7fu;
    if (bits == 0x7fu) {
        return 0.0;
    }
    if (bits < 8u) {
        return f32(bits) * 0x1p-10;
    }
    return bitcast<f32>((bits << 20u) + (119u << 23u));
}
