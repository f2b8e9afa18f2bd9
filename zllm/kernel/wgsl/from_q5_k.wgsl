// Q5_K (zllm.quant.gguf_k): 176 bytes a super-block, 16 of scales, 32 of upper bits, 128 of
// nibbles.
fn code(row: u32, block: u32, e: u32) -> u32 {
    let run = block % 8u;
    let at = 176u * (block / 8u);
    let low = (byte(row, at + 48u + 32u * (run / 2u) + e) >> (4u * (run % 2u))) & 15u;
    return low | (((byte(row, at + 16u + e) >> run) & 1u) << 4u);
}

fn scale_word(row: u32, i: u32) -> u32 {
    return raw[row * RAW_ROW_WORDS + 44u * (i / 4u) + i % 4u];
}
