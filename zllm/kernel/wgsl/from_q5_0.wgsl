// Q5_0 (zllm.quant.gguf_legacy): 22 bytes, f16 d, 32 upper bits, 16 bytes of nibbles.
fn code(row: u32, block: u32, e: u32) -> u32 {
    let at = 22u * block;
    let low = (byte(row, at + 6u + e % 16u) >> (4u * (e / 16u))) & 15u;
    return low | (((byte(row, at + 2u + e / 8u) >> (e % 8u)) & 1u) << 4u);
}

fn scale_word(row: u32, i: u32) -> u32 {
    let first = half(row, 44u * i);
    if (2u * i + 1u == BLOCKS) {
        return first;
    }
    return first | (half(row, 44u * i + 22u) << 16u);
}
