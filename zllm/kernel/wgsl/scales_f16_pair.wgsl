// A word a block: an f16 scale for either half.
fn scale_words() -> u32 {
    return BLOCKS;
}

fn scales_at(start: u32, block: u32) -> Scales {
    return Scales(unpack2x16float(word_at(start, CODE_WORDS * BLOCKS + block)), vec2<f32>());
}
