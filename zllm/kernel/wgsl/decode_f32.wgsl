// f32, eight a block.
struct Block {
    a: vec4<f32>,
    b: vec4<f32>,
}

@group(0) @binding(0) var<storage, read> w: array<Block>;

fn decode(part: u32) -> mat2x4<f32> {
    return mat2x4<f32>(w[part].a, w[part].b);
}

fn block_dot(block: Block, x: Input) -> f32 {
    return dot(block.a, x.z0) + dot(block.b, x.z1);
}
