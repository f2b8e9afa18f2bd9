// IQ4_NL (zllm.quant.gguf_iq): 18 bytes, f16 d, 16 bytes of nibbles.
fn code(row: u32, block: u32, e: u32) -> u32 {
    return (byte(row, 18u * block + 2u + e % 16u) >> (4u * (e / 16u))) & 15u;
}

fn scale_word(row: u32, i: u32) -> u32 {
    let first = half(row, 36u * i);
    if (2u * i + 1u == BLOCKS) {
        return first;
    }
    return first | (half(row, 36u * i + 18u) << 16u);
}
