// Elements 4k … 4k+3 of a block of f32.
fn block_quad_0(block: Block) -> vec4<f32> {
    return block.a;
}

fn block_quad_1(block: Block) -> vec4<f32> {
    return block.b;
}
