// f16 d times each of two int8 factors.
fn factors(word: u32) -> vec2<f32> {
    let s = bitcast<i32>(word);
    let d = unpack2x16float(word).x;
    return d * vec2<f32>(f32(extractBits(s, 16u, 8u)), f32(extractBits(s, 24u, 8u)));
}
