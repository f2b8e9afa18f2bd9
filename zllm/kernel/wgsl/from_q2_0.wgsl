// Q2_0 (zllm.quant.gguf_ternary): 18 bytes for 64 elements, f16 d, 16 bytes of pairs.
fn code(row: u32, block: u32, e: u32) -> u32 {
    let at = 18u * (block / 2u) + 2u + 8u * (block % 2u);
    return (byte(row, at + e / 4u) >> (2u * (e % 4u))) & 3u;
}

fn scale_word(row: u32, i: u32) -> u32 {
    return scale_factors(row, 18u * (i / 2u), 1u, 1u);
}
