// Two words a block: f16 d and an int8 factor for either half; the same of what is subtracted.
fn scale_words() -> u32 {
    return 2u * BLOCKS;
}

fn scales_at(start: u32, block: u32) -> Scales {
    let at = CODE_WORDS * BLOCKS + 2u * block;
    return Scales(factors(word_at(start, at)), -factors(word_at(start, at + 1u)));
}
