// Rows of x and the norm weight for any offset, stride and number of columns; zero beyond the last
// column.
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read> norm: array<f32>;

override COLUMNS: u32;
override X_OFFSET: u32 = 0u; // elements, as all offsets and strides
override X_STRIDE: u32;
override NORM_OFFSET: f32 = 0.0; // of the norm weight

fn within(quad: u32) -> vec4<bool> {
    return (vec4<u32>(4u * quad) + vec4<u32>(0u, 1u, 2u, 3u)) < vec4<u32>(COLUMNS);
}

// Columns 4·quad … 4·quad+3 of row `row`. What lies beyond may be NaN, so it is not multiplied
// away.
fn x4(row: u32, quad: u32) -> vec4<f32> {
    let i = X_OFFSET + row * X_STRIDE + 4u * quad;
    return select(vec4<f32>(), vec4<f32>(x[i], x[i + 1u], x[i + 2u], x[i + 3u]), within(quad));
}

fn norm4(quad: u32) -> vec4<f32> {
    let i = 4u * quad;
    let w = vec4<f32>(norm[i], norm[i + 1u], norm[i + 2u], norm[i + 3u]);
    return select(vec4<f32>(), w + NORM_OFFSET, within(quad));
}
