// How a gate meets what it multiplies (zllm.activation.gated).
override ACTIVATION: u32 = 0u; // 0: silu, 1: gelu_tanh, 2: swiglu_oai
override LIMIT: f32 = 0.0; // 0: none. gate ≤ LIMIT, -LIMIT ≤ up ≤ LIMIT
override ALPHA: f32 = 1.702; // of swiglu_oai

fn activate(gate: f32, up: f32) -> f32 {
    var g = gate;
    var u = up;
    if (LIMIT > 0.0) {
        g = min(g, LIMIT);
        u = clamp(u, -LIMIT, LIMIT);
    }
    if (ACTIVATION == 1u) {
        // tanh overflows in some drivers; beyond 10 it is 1.
        let inner = 0.7978845608 * (g + 0.044715 * g * g * g);
        return 0.5 * g * (1.0 + tanh(clamp(inner, -10.0, 10.0))) * u;
    }
    if (ACTIVATION == 2u) {
        return g * logistic(ALPHA * g) * (u + 1.0);
    }
    return silu(g) * u;
}
