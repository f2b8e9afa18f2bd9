// Q8_0 (zllm.quant.gguf_legacy) with its f16 d widened to a word, then 32 signed bytes: d q.
struct Block {
    scale: u32,
    a: u32,
    b: u32,
    c: u32,
    d: u32,
    e: u32,
    f: u32,
    g: u32,
    h: u32,
}

const SPREAD = vec4<f32>(0x1p-24);

@group(0) @binding(0) var<storage, read> w: array<Block>;

fn signed_bytes(word: u32) -> vec4<f32> {
    return vec4<f32>(spread_signed(word)) * 0x1p-24;
}

// Signed bytes moved to the top of a word, 2^24 too large; SPREAD takes it back.
fn spread_signed(word: u32) -> vec4<f32> {
    let w = bitcast<i32>(word);
    return vec4<f32>(
        f32(w << 24u), f32((w << 16u) & -0x1000000), f32((w << 8u) & -0x1000000), f32(w & -0x1000000)
    );
}

fn decode(part: u32) -> mat2x4<f32> {
    let block = w[part / 4u];
    let k = part % 4u;
    let d = unpack2x16float(block.scale).x;
    return mat2x4<f32>(
        d * signed_bytes(vec4<u32>(block.a, block.b, block.c, block.d)[k]),
        d * signed_bytes(vec4<u32>(block.e, block.f, block.g, block.h)[k])
    );
}

fn block_dot(block: Block, x: Input) -> f32 {
    let q = dot(spread_signed(block.a), x.z0) + dot(spread_signed(block.b), x.z1)
        + dot(spread_signed(block.c), x.z2) + dot(spread_signed(block.d), x.z3)
        + dot(spread_signed(block.e), x.z4) + dot(spread_signed(block.f), x.z5)
        + dot(spread_signed(block.g), x.z6) + dot(spread_signed(block.h), x.z7);
    return unpack2x16float(block.scale).x * q;
}
