// The code that means zero.
const ZERO: f32 = 4.0;
