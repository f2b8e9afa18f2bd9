// The code that means zero.
const ZERO: f32 = 128.0;
