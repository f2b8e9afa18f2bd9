// An f16 d a block, two a word.
fn scale_words() -> u32 {
    return (BLOCKS + 1u) / 2u;
}

fn scales_at(start: u32, block: u32) -> Scales {
    let d = unpack2x16float(word_at(start, CODE_WORDS * BLOCKS + block / 2u))[block % 2u];
    return Scales(vec2<f32>(d), vec2<f32>());
}
