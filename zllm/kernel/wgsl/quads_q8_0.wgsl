// Elements 4k … 4k+3 of a block of Q8_0.
// unroll k 8
fn block_quad_$k(block: Block) -> vec4<f32> {
    let word = select(block.high[$k % 4], block.low[$k % 4], $k < 4);
    return block.d * bytes(word ^ 0x80808080u) - 128.0 * block.d;
}

// end
