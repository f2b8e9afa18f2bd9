// Integers 4k … 4k+3 of a block of Q4_0, and what they and 1 are multiplied with.
// unroll k 8
fn block_codes_$k(block: Block) -> u32 {
    return (block.nibbles[$k % 4] >> ($ku / 4u * 4u)) & 0x0f0f0f0fu;
}

// end
fn block_factors(block: Block) -> vec2<f32> {
    return vec2<f32>(block.d, -8.0 * block.d);
}
