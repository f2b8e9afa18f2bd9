// Q6_K (zllm.quant.gguf_k) cut into blocks of 32 by repack_q6_k: d scale (q - 32).
// scales: f16 d, two int8 scales (elements 0 … 15 and 16 … 31). a … d: low nibbles as in Q4_0.
// e, f: upper two bits; bits 2k, 2k+1 of byte i belong to element 4k+i (e) and 16+4k+i (f).
struct Block {
    scales: u32,
    a: u32,
    b: u32,
    c: u32,
    d: u32,
    e: u32,
    f: u32,
}

@group(0) @binding(0) var<storage, read> w: array<Block>;

fn join6(nibbles: u32, upper: u32) -> u32 {
    return (nibbles & 0x0f0f0f0fu) | ((upper & 0x03030303u) << 4u);
}

// d times each of the two scales.
fn group_scales(scales: u32) -> vec2<f32> {
    let s = bitcast<i32>(scales);
    let d = unpack2x16float(scales).x;
    return d * vec2<f32>(f32(extractBits(s, 16u, 8u)), f32(extractBits(s, 24u, 8u)));
}

fn decode(part: u32) -> mat2x4<f32> {
    let block = w[part / 4u];
    let k = part % 4u;
    let word = vec4<u32>(block.a, block.b, block.c, block.d)[k];
    let s = group_scales(block.scales);
    return mat2x4<f32>(
        s.x * (bytes(join6(word, block.e >> (2u * k))) - 32.0),
        s.y * (bytes(join6(word >> 4u, block.f >> (2u * k))) - 32.0)
    );
}

fn block_dot(block: Block, x: Input) -> f32 {
    let low = dot(spread_bytes(join6(block.a, block.e)), x.z0)
        + dot(spread_bytes(join6(block.b, block.e >> 2u)), x.z1)
        + dot(spread_bytes(join6(block.c, block.e >> 4u)), x.z2)
        + dot(spread_bytes(join6(block.d, block.e >> 6u)), x.z3);
    let high = dot(spread_bytes(join6(block.a >> 4u, block.f)), x.z4)
        + dot(spread_bytes(join6(block.b >> 4u, block.f >> 2u)), x.z5)
        + dot(spread_bytes(join6(block.c >> 4u, block.f >> 4u)), x.z6)
        + dot(spread_bytes(join6(block.d >> 4u, block.f >> 6u)), x.z7);
    let s = group_scales(block.scales);
    return s.x * (low - 32.0 * x.low) + s.y * (high - 32.0 * x.high);
}
