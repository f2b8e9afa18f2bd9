// IEEE 754 binary16, eight a block; needs no shader-f16.
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
    let p = block.pairs;
    return mat2x4<f32>(
        vec4<f32>(unpack2x16float(p.x), unpack2x16float(p.y)),
        vec4<f32>(unpack2x16float(p.z), unpack2x16float(p.w))
    );
}

fn block_dot(block: Block, x: Input) -> f32 {
    let v = floats(block);
    return dot(v[0], x.z0) + dot(v[1], x.z1);
}
