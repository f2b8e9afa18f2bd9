// Codes are integers above ZERO.
fn values(word: u32) -> vec4<f32> {
    return bytes(word) - ZERO;
}

fn spread_values(word: u32) -> vec4<f32> {
    return spread_bytes(word);
}
