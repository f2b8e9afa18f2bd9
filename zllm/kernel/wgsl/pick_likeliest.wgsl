fn pick(seq: u32, likeliest: vec2<u32>, lane: u32) -> u32 {
    return likeliest.y;
}

fn carry(seq: u32, token: u32) {
}
