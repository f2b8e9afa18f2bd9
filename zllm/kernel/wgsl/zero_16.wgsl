// The code that means zero.
const ZERO: f32 = 16.0;
