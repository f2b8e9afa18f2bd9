// Q4_1 (zllm.quant.gguf_legacy), repacked: a row is a vec4 of nibbles a block, then a word of f16 d
// and m a block: d q + m.
struct Block {
    nibbles: vec4<u32>,
    scales: u32,
}

@group(0) @binding(0) var<storage, read> w: array<vec4<u32>>;

fn row_start(row: u32) -> u32 {
    return row * (BLOCKS + (BLOCKS + 3u) / 4u);
}

fn scales_at(start: u32, block: u32) -> u32 {
    return w[start + BLOCKS + block / 4u][block % 4u];
}

fn block_at(start: u32, block: u32) -> Block {
    return Block(w[start + block], scales_at(start, block));
}

fn decode(start: u32, part: u32) -> mat2x4<f32> {
    let word = w[start + part / 4u][part % 4u];
    let dm = unpack2x16float(scales_at(start, part / 4u));
    return mat2x4<f32>(
        dm.x * bytes(word & 0x0f0f0f0fu) + dm.y, dm.x * bytes((word >> 4u) & 0x0f0f0f0fu) + dm.y
    );
}

fn block_dot(block: Block, x: Input) -> f32 {
    let dm = unpack2x16float(block.scales);
    return dm.x * nibbles_dot(block.nibbles, x) + dm.y * (x.low + x.high);
}
