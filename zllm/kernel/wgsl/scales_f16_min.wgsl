// A word a block: f16 d and m.
fn scale_words() -> u32 {
    return BLOCKS;
}

fn scales_at(start: u32, block: u32) -> Scales {
    let dm = unpack2x16float(word_at(start, CODE_WORDS * BLOCKS + block));
    return Scales(dm.xx, dm.yy);
}
