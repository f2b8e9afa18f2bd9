// Elements 4k … 4k+3 of a block of f16 or bf16.
// unroll k 2
fn block_quad_$k(block: Block) -> vec4<f32> {
    return floats(block)[$k];
}

// end
