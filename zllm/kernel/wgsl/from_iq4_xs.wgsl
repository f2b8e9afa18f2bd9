// IQ4_XS (zllm.quant.gguf_iq): 136 bytes a super-block, f16 d, 16 upper and 32 lower bits of
// scales, 128 bytes of nibbles.
fn code(row: u32, block: u32, e: u32) -> u32 {
    let at = 136u * (block / 8u) + 8u + 16u * (block % 8u);
    return (byte(row, at + e % 16u) >> (4u * (e / 16u))) & 15u;
}

fn scale_word(row: u32, i: u32) -> u32 {
    let at = 136u * (i / 8u);
    let j = i % 8u;
    let low = (byte(row, at + 4u + j / 2u) >> (4u * (j % 2u))) & 15u;
    let high = (half(row, at + 2u) >> (2u * j)) & 3u;
    let factor = (low | (high << 4u)) - 32u;
    return scale_factors(row, at, factor, factor);
}
