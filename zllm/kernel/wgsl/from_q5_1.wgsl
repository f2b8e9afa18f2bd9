// Q5_1 (zllm.quant.gguf_legacy): 24 bytes, f16 d and m, 32 upper bits, 16 bytes of nibbles.
fn code(row: u32, block: u32, e: u32) -> u32 {
    let at = 24u * block;
    let low = (byte(row, at + 8u + e % 16u) >> (4u * (e / 16u))) & 15u;
    return low | (((byte(row, at + 4u + e / 8u) >> (e % 8u)) & 1u) << 4u);
}

fn scale_word(row: u32, i: u32) -> u32 {
    return half(row, 24u * i) | (half(row, 24u * i + 2u) << 16u);
}
