// Q1_0 (zllm.quant.gguf_ternary): 18 bytes for 128 elements, f16 d, 16 bytes of signs.
fn code(row: u32, block: u32, e: u32) -> u32 {
    let at = 18u * (block / 4u) + 2u + 4u * (block % 4u);
    return 2u * ((byte(row, at + e / 8u) >> (e % 8u)) & 1u);
}

fn scale_word(row: u32, i: u32) -> u32 {
    return scale_factors(row, 18u * (i / 4u), 1u, 1u);
}
