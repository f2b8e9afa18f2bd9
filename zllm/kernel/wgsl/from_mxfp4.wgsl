// MXFP4 (zllm.quant.gguf_float4): 17 bytes, E8M0 e, 16 bytes of nibbles.
fn code(row: u32, block: u32, e: u32) -> u32 {
    return (byte(row, 17u * block + 1u + e % 16u) >> (4u * (e / 16u))) & 15u;
}

fn scale_word(row: u32, i: u32) -> u32 {
    var word = 0u;
    for (var j = 4u * i; j < min(4u * i + 4u, BLOCKS); j++) {
        word |= byte(row, 17u * j) << (8u * (j % 4u));
    }
    return word;
}
