// The code that means zero.
const ZERO: f32 = 0.0;
