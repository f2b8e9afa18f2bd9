// Q4_1 (zllm.quant.gguf_legacy) as the file has it: f16 d and m, then 32 nibbles: d q + m.
struct Block {
    scales: u32,
    a: u32,
    b: u32,
    c: u32,
    d: u32,
}

@group(0) @binding(0) var<storage, read> w: array<Block>;

fn decode(part: u32) -> mat2x4<f32> {
    let block = w[part / 4u];
    let word = vec4<u32>(block.a, block.b, block.c, block.d)[part % 4u];
    let dm = unpack2x16float(block.scales);
    return mat2x4<f32>(
        dm.x * bytes(word & 0x0f0f0f0fu) + dm.y, dm.x * bytes((word >> 4u) & 0x0f0f0f0fu) + dm.y
    );
}

fn block_dot(block: Block, x: Input) -> f32 {
    let dm = unpack2x16float(block.scales);
    let q = dot(spread_nibbles(block.a), x.z0) + dot(spread_nibbles(block.b), x.z1)
        + dot(spread_nibbles(block.c), x.z2) + dot(spread_nibbles(block.d), x.z3)
        + dot(spread_nibbles(block.a >> 4u), x.z4) + dot(spread_nibbles(block.b >> 4u), x.z5)
        + dot(spread_nibbles(block.c >> 4u), x.z6) + dot(spread_nibbles(block.d >> 4u), x.z7);
    return dm.x * q + dm.y * (x.low + x.high);
}
