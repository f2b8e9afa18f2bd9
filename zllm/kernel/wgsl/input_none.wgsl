// For kernels that decode weights without multiplying: what the block files name of a product's
// input.
const NORM: bool = false;

fn x4(row: u32, quad: u32) -> vec4<f32> {
    return vec4<f32>();
}

fn norm4(quad: u32) -> vec4<f32> {
    return vec4<f32>();
}
