// Integers 4k … 4k+3 of a block of Q8_0, and what they and 1 are multiplied with.
// unroll k 8
fn block_codes_$k(block: Block) -> u32 {
    return select(block.high[$k % 4], block.low[$k % 4], $k < 4);
}

// end
fn block_factors(block: Block) -> vec2<f32> {
    return vec2<f32>(block.d, 0.0);
}
