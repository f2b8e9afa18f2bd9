// A byte e a block: 2^(e - 128). The two smallest are subnormal, which a device may take for zero.
fn scale_words() -> u32 {
    return (BLOCKS + 3u) / 4u;
}

fn scales_at(start: u32, block: u32) -> Scales {
    let word = word_at(start, CODE_WORDS * BLOCKS + block / 4u);
    let e = (word >> (8u * (block % 4u))) & 0xffu;
    let bits = select(0x200000u << e, (max(e, 1u) - 1u) << 23u, e > 1u);
    return Scales(vec2<f32>(bitcast<f32>(bits)), vec2<f32>());
}
