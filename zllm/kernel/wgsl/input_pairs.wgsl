// x as product_input left it: in pairs of bytes. The two functions are what the block files name of
// a product's input.
@group(0) @binding(1) var<storage, read> pairs: array<vec4<u32>>;

override COLUMNS: u32;

fn x4(row: u32, quad: u32) -> vec4<f32> {
    return vec4<f32>();
}

fn norm4(quad: u32) -> vec4<f32> {
    return vec4<f32>();
}
