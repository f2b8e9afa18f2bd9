// An f32 a block.
fn scale_words() -> u32 {
    return BLOCKS;
}

fn scales_at(start: u32, block: u32) -> Scales {
    let s = bitcast<f32>(word_at(start, CODE_WORDS * BLOCKS + block));
    return Scales(vec2<f32>(s), vec2<f32>());
}
