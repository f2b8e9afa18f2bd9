// Rows of x and the norm weight, four columns a load: offsets, strides and columns are whole vec4s.
@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> norm: array<vec4<f32>>;

override COLUMNS: u32;
override X_OFFSET: u32 = 0u; // elements, as all offsets and strides
override X_STRIDE: u32;
override NORM_OFFSET: f32 = 0.0; // of the norm weight

// Columns 4·quad … 4·quad+3 of row `row`.
fn x4(row: u32, quad: u32) -> vec4<f32> {
    return x[X_OFFSET / 4u + row * (X_STRIDE / 4u) + quad];
}

fn norm4(quad: u32) -> vec4<f32> {
    return norm[quad] + NORM_OFFSET;
}
