// E2M1 doubled, as ggml has it (zllm.quant.gguf_float4); scales are halved.
var<private> LIST: array<f32, 16> = array<f32, 16>(
    0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0,
    0.0, -1.0, -2.0, -3.0, -4.0, -6.0, -8.0, -12.0
);
