// An f32 for either half of a block.
fn scale_words() -> u32 {
    return 2u * BLOCKS;
}

fn scales_at(start: u32, block: u32) -> Scales {
    let at = CODE_WORDS * BLOCKS + 2u * block;
    let s = vec2<u32>(word_at(start, at), word_at(start, at + 1u));
    return Scales(bitcast<vec2<f32>>(s), vec2<f32>());
}
