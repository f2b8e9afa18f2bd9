// Integers 4k … 4k+3 of a block of Q4_1, and what they and 1 are multiplied with.
// unroll k 8
fn block_codes_$k(block: Block) -> u32 {
    return (block.nibbles[$k % 4] >> ($ku / 4u * 4u)) & 0x0f0f0f0fu;
}

// end
fn block_factors(block: Block) -> vec2<f32> {
    return unpack2x16float(block.scales);
}
