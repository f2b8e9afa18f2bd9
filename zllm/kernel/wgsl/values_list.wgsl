// Codes are places in LIST, which needs no spreading.
const ZERO: f32 = 0.0;
const SPREAD_LOW = vec4<f32>(1.0);
const SPREAD_HIGH = SPREAD_LOW;

fn values(word: u32) -> vec4<f32> {
    return vec4<f32>(
        LIST[word & 15u], LIST[(word >> 8u) & 15u], LIST[(word >> 16u) & 15u], LIST[word >> 24u]
    );
}

fn spread_values(word: u32) -> vec4<f32> {
    return values(word);
}
