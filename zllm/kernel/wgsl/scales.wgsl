// Of the two halves of a block of 32.
struct Scales {
    s: vec2<f32>,
    m: vec2<f32>,
}
