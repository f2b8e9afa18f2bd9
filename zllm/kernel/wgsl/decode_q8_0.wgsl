// Q8_0 (zllm.quant.gguf_legacy), repacked: a row is two vec4s of signed bytes a block, then an f16
// d a block: d q.
struct Block {
    low: vec4<u32>,
    high: vec4<u32>,
    d: f32,
}

@group(0) @binding(0) var<storage, read> w: array<vec4<u32>>;

fn row_start(row: u32) -> u32 {
    return row * (2u * BLOCKS + (BLOCKS + 7u) / 8u);
}

fn d_at(start: u32, block: u32) -> f32 {
    return unpack2x16float(w[start + 2u * BLOCKS + block / 8u][block / 2u % 4u])[block % 2u];
}

fn block_at(start: u32, block: u32) -> Block {
    return Block(w[start + 2u * block], w[start + 2u * block + 1u], d_at(start, block));
}

fn decode(start: u32, part: u32) -> mat2x4<f32> {
    let at = start + part / 4u * 2u;
    let d = d_at(start, part / 4u);
    return mat2x4<f32>(
        d * (bytes(w[at][part % 4u] ^ 0x80808080u) - 128.0),
        d * (bytes(w[at + 1u][part % 4u] ^ 0x80808080u) - 128.0)
    );
}

// With 128 added the bytes are unsigned, and a mask unpacks them.
fn block_dot(block: Block, x: Input) -> f32 {
    let low = block.low ^ vec4<u32>(0x80808080u);
    let high = block.high ^ vec4<u32>(0x80808080u);
    let q = dot(spread_bytes(low.x), x.z0) + dot(spread_bytes(low.y), x.z1)
        + dot(spread_bytes(low.z), x.z2) + dot(spread_bytes(low.w), x.z3)
        + dot(spread_bytes(high.x), x.z4) + dot(spread_bytes(high.y), x.z5)
        + dot(spread_bytes(high.z), x.z6) + dot(spread_bytes(high.w), x.z7);
    return block.d * (q - 128.0 * (x.low + x.high));
}
