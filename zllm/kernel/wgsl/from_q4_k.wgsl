// Q4_K (zllm.quant.gguf_k): 144 bytes a super-block, 16 of scales, 128 of nibbles.
fn code(row: u32, block: u32, e: u32) -> u32 {
    let run = block % 8u;
    let at = 144u * (block / 8u) + 16u + 32u * (run / 2u);
    return (byte(row, at + e) >> (4u * (run % 2u))) & 15u;
}

fn scale_word(row: u32, i: u32) -> u32 {
    return raw[row * RAW_ROW_WORDS + 36u * (i / 4u) + i % 4u];
}
