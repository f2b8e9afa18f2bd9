// TQ1_0 (zllm.quant.gguf_ternary): 54 bytes a super-block, 48 of five digits base 3, 4 of four,
// f16 d.
fn code(row: u32, block: u32, e: u32) -> u32 {
    let at = 54u * (block / 8u);
    let i = 32u * (block % 8u) + e;
    if (i < 160u) {
        return digit(byte(row, at + i % 32u), i / 32u);
    }
    if (i < 240u) {
        return digit(byte(row, at + 32u + (i - 160u) % 16u), (i - 160u) / 16u);
    }
    return digit(byte(row, at + 48u + i % 4u), (i - 240u) / 4u);
}

// The byte is a fraction of 256; what is left of it after some digits gives the next one.
fn digit(packed: u32, place: u32) -> u32 {
    var rest = packed;
    for (var i = 0u; i < place; i++) {
        rest = (3u * rest) & 0xffu;
    }
    return (3u * rest) >> 8u;
}

fn scale_word(row: u32, i: u32) -> u32 {
    return scale_factors(row, 54u * (i / 8u) + 52u, 1u, 1u);
}
