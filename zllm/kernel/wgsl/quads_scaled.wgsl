// Elements 4k … 4k+3 of a block of codes and scales.
// unroll k 8
fn block_quad_$k(block: Block) -> vec4<f32> {
    return block.scales.s[$k / 4] * values(quad(block.codes, $ku)) + block.scales.m[$k / 4];
}

// end
