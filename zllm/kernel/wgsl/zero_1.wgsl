// The code that means zero.
const ZERO: f32 = 1.0;
