// Elements 4k … 4k+3 of a block of 32 of Q6_K.
// unroll k 8
fn block_quad_$k(block: Block) -> vec4<f32> {
    let s = block.scales[$k / 4];
    let low = block.nibbles[$k % 4] >> ($ku / 4u * 4u);
    return s * bytes(join6(low, block.upper[$k / 4] >> ($ku % 4u * 2u))) - 32.0 * s;
}

// end
