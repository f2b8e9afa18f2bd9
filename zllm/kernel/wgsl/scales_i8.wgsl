// A word a block: f16 d, then an int8 factor for either half.
fn scale_words() -> u32 {
    return BLOCKS;
}

fn scales_at(start: u32, block: u32) -> Scales {
    return Scales(factors(word_at(start, CODE_WORDS * BLOCKS + block)), vec2<f32>());
}
