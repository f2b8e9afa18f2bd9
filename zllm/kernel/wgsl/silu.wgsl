// z σ(z). Beyond -80 the answer rounds to nothing, and e^80 is still finite.
fn silu(z: f32) -> f32 {
    return z / (1.0 + exp(-max(z, -80.0)));
}
