// Q4_0 (zllm.quant.gguf_legacy), repacked: a row is a vec4 of nibbles a block, then an f16 d a
// block: d (q - 8).
struct Block {
    nibbles: vec4<u32>,
    d: f32,
}

@group(0) @binding(0) var<storage, read> w: array<vec4<u32>>;

fn row_start(row: u32) -> u32 {
    return row * (BLOCKS + (BLOCKS + 7u) / 8u);
}

fn d_at(start: u32, block: u32) -> f32 {
    return unpack2x16float(w[start + BLOCKS + block / 8u][block / 2u % 4u])[block % 2u];
}

fn block_at(start: u32, block: u32) -> Block {
    return Block(w[start + block], d_at(start, block));
}

fn decode(start: u32, part: u32) -> mat2x4<f32> {
    let word = w[start + part / 4u][part % 4u];
    let d = d_at(start, part / 4u);
    return mat2x4<f32>(
        d * (bytes(word & 0x0f0f0f0fu) - 8.0), d * (bytes((word >> 4u) & 0x0f0f0f0fu) - 8.0)
    );
}

fn block_dot(block: Block, x: Input) -> f32 {
    return block.d * (nibbles_dot(block.nibbles, x) - 8.0 * (x.low + x.high));
}
