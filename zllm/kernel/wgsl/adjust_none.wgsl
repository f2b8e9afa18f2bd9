fn adjust(seq: u32, token: u32, value: f32) -> f32 {
    return value;
}
