// σ(z) and z σ(z). Beyond -80 the answers round to nothing, and e^80 is still finite.
fn logistic(z: f32) -> f32 {
    return 1.0 / (1.0 + exp(-max(z, -80.0)));
}

fn silu(z: f32) -> f32 {
    return z * logistic(z);
}
