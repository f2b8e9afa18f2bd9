// f32, eight a block.
struct Block {
    a: vec4<f32>,
    b: vec4<f32>,
}

@group(0) @binding(0) var<storage, read> w: array<Block>;

fn row_start(row: u32) -> u32 {
    return row * BLOCKS;
}

fn block_at(start: u32, block: u32) -> Block {
    return w[start + block];
}

fn decode(start: u32, part: u32) -> mat2x4<f32> {
    let block = w[start + part];
    return mat2x4<f32>(block.a, block.b);
}

fn block_dot(block: Block, x: Input) -> f32 {
    return dot(block.a, x.z0) + dot(block.b, x.z1);
}
