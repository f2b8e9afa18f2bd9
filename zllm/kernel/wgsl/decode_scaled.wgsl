// Codes with a scale and a summand for each half of a block of 32: s v(code) + m.
struct Block {
    codes: Codes,
    scales: Scales,
}

fn row_start(row: u32) -> u32 {
    return row * ((CODE_WORDS * BLOCKS + scale_words() + 3u) / 4u);
}

fn block_at(start: u32, block: u32) -> Block {
    return Block(codes_at(start, block), scales_at(start, block));
}

fn decode(start: u32, part: u32) -> mat2x4<f32> {
    let codes = codes_at(start, part / 4u);
    let scales = scales_at(start, part / 4u);
    return mat2x4<f32>(
        scales.s.x * values(quad(codes, part % 4u)) + scales.m.x,
        scales.s.y * values(quad(codes, part % 4u + 4u)) + scales.m.y
    );
}

fn block_dot(block: Block, x: Input) -> f32 {
    let c = block.codes;
    let low = dot(spread_values(quad(c, 0u)), x.z0) + dot(spread_values(quad(c, 1u)), x.z1)
        + dot(spread_values(quad(c, 2u)), x.z2) + dot(spread_values(quad(c, 3u)), x.z3);
    let high = dot(spread_values(quad(c, 4u)), x.z4) + dot(spread_values(quad(c, 5u)), x.z5)
        + dot(spread_values(quad(c, 6u)), x.z6) + dot(spread_values(quad(c, 7u)), x.z7);
    let scales = block.scales;
    return scales.s.x * (low - ZERO * x.low) + scales.m.x * x.low
        + scales.s.y * (high - ZERO * x.high) + scales.m.y * x.high;
}
