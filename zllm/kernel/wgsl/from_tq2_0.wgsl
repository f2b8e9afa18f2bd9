// TQ2_0 (zllm.quant.gguf_ternary): 66 bytes a super-block, 64 of pairs, f16 d.
fn code(row: u32, block: u32, e: u32) -> u32 {
    let run = block % 8u;
    let at = 66u * (block / 8u) + 32u * (run / 4u);
    return (byte(row, at + e) >> (2u * (run % 4u))) & 3u;
}

fn scale_word(row: u32, i: u32) -> u32 {
    return scale_factors(row, 66u * (i / 8u) + 64u, 1u, 1u);
}
