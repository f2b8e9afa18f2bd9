// Q2_K (zllm.quant.gguf_k): 84 bytes a super-block, 16 scales with mins, 64 of pairs, f16 d, dmin.
fn code(row: u32, block: u32, e: u32) -> u32 {
    let run = block % 8u;
    let at = 84u * (block / 8u) + 16u + 32u * (run / 4u);
    return (byte(row, at + e) >> (2u * (run % 4u))) & 3u;
}

fn scale_word(row: u32, i: u32) -> u32 {
    let block = i / 2u;
    let at = 84u * (block / 8u);
    let first = byte(row, at + block % 8u * 2u);
    let second = byte(row, at + block % 8u * 2u + 1u);
    if (i % 2u == 0u) {
        return scale_factors(row, at + 80u, first & 15u, second & 15u);
    }
    return scale_factors(row, at + 82u, first >> 4u, second >> 4u);
}
