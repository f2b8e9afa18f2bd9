// bfloat16, eight a block: the upper half of an f32.
struct Block {
    pairs: vec4<u32>,
}

@group(0) @binding(0) var<storage, read> w: array<Block>;

fn row_start(row: u32) -> u32 {
    return row * BLOCKS;
}

fn block_at(start: u32, block: u32) -> Block {
    return w[start + block];
}

fn decode(start: u32, part: u32) -> mat2x4<f32> {
    return floats(w[start + part]);
}

fn floats(block: Block) -> mat2x4<f32> {
    let even = bitcast<vec4<f32>>(block.pairs << vec4<u32>(16u));
    let odd = bitcast<vec4<f32>>(block.pairs & vec4<u32>(0xffff0000u));
    return mat2x4<f32>(
        vec4<f32>(even.x, odd.x, even.y, odd.y), vec4<f32>(even.z, odd.z, even.w, odd.w)
    );
}

fn block_dot(block: Block, x: Input) -> f32 {
    let v = floats(block);
    return dot(v[0], x.z0) + dot(v[1], x.z1);
}
