// Q3_K (zllm.quant.gguf_k): 110 bytes a super-block, 32 of upper bits, 64 of pairs, 12 of scales,
// f16 d.
fn code(row: u32, block: u32, e: u32) -> u32 {
    let run = block % 8u;
    let at = 110u * (block / 8u);
    let low = (byte(row, at + 32u + 32u * (run / 4u) + e) >> (2u * (run % 4u))) & 3u;
    return low | (((byte(row, at + e) >> run) & 1u) << 2u);
}

fn scale_word(row: u32, i: u32) -> u32 {
    let at = 110u * (i / 8u);
    let j = i % 8u * 2u;
    return scale_factors(row, at + 108u, factor(row, at + 96u, j), factor(row, at + 96u, j + 1u));
}

// Scale j of 16: six bits, less 32.
fn factor(row: u32, at: u32, j: u32) -> u32 {
    let low = (byte(row, at + j % 8u) >> (4u * (j / 8u))) & 15u;
    let high = (byte(row, at + 8u + j % 4u) >> (2u * (j / 4u))) & 3u;
    return (low | (high << 4u)) - 32u;
}
