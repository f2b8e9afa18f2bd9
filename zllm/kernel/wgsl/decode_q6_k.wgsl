// Q6_K (zllm.quant.gguf_k), cut into blocks of 32 by repack_q6_k: d scale (q - 32). A row is
// a vec4 of low nibbles a block, as in Q4_0;
// two words of upper bits a block: bits 2k, 2k+1 of byte i are of element 4k+i of the half;
// a word of scales a block: f16 d, then an int8 scale for either half.
struct Block {
    nibbles: vec4<u32>,
    upper: vec2<u32>,
    scales: vec2<f32>,
}

@group(0) @binding(0) var<storage, read> w: array<vec4<u32>>;

// Rows are whole super-blocks, so BLOCKS is a multiple of 8.
fn row_start(row: u32) -> u32 {
    return row * (BLOCKS / 4u * 7u);
}

fn upper_at(start: u32, block: u32) -> vec2<u32> {
    let at = start + BLOCKS + block / 2u;
    let i = 2u * (block % 2u);
    return vec2<u32>(w[at][i], w[at][i + 1u]);
}

// d times each of the two scales.
fn scales_at(start: u32, block: u32) -> vec2<f32> {
    let word = w[start + BLOCKS / 2u * 3u + block / 4u][block % 4u];
    let s = bitcast<i32>(word);
    let d = unpack2x16float(word).x;
    return d * vec2<f32>(f32(extractBits(s, 16u, 8u)), f32(extractBits(s, 24u, 8u)));
}

fn block_at(start: u32, block: u32) -> Block {
    return Block(w[start + block], upper_at(start, block), scales_at(start, block));
}

fn join6(nibbles: u32, upper: u32) -> u32 {
    return (nibbles & 0x0f0f0f0fu) | ((upper & 0x03030303u) << 4u);
}

fn decode(start: u32, part: u32) -> mat2x4<f32> {
    let block = part / 4u;
    let word = w[start + block][part % 4u];
    let upper = upper_at(start, block) >> vec2<u32>(part % 4u * 2u);
    let s = scales_at(start, block);
    return mat2x4<f32>(
        s.x * (bytes(join6(word, upper.x)) - 32.0), s.y * (bytes(join6(word >> 4u, upper.y)) - 32.0)
    );
}

fn block_dot(block: Block, x: Input) -> f32 {
    let n = block.nibbles;
    let u = block.upper;
    let low = dot(spread_bytes(join6(n.x, u.x)), x.z0)
        + dot(spread_bytes(join6(n.y, u.x >> 2u)), x.z1)
        + dot(spread_bytes(join6(n.z, u.x >> 4u)), x.z2)
        + dot(spread_bytes(join6(n.w, u.x >> 6u)), x.z3);
    let high = dot(spread_bytes(join6(n.x >> 4u, u.y)), x.z4)
        + dot(spread_bytes(join6(n.y >> 4u, u.y >> 2u)), x.z5)
        + dot(spread_bytes(join6(n.z >> 4u, u.y >> 4u)), x.z6)
        + dot(spread_bytes(join6(n.w >> 4u, u.y >> 6u)), x.z7);
    return block.scales.x * (low - 32.0 * x.low) + block.scales.y * (high - 32.0 * x.high);
}
