// Each thread reads the x that it needs by itself.
struct Sixteen {
    a: vec4<f32>,
    b: vec4<f32>,
    c: vec4<f32>,
    d: vec4<f32>,
    sum: f32, // without the factor
    squares: f32, // of x before the norm
}

// Four quads of x times the factor; times the norm weight too if the product normalises.
fn sixteen(row: u32, quad: u32, factor: vec4<f32>) -> Sixteen {
    var a = x4(row, quad);
    var b = x4(row, quad + 1u);
    var c = x4(row, quad + 2u);
    var d = x4(row, quad + 3u);
    var squares = 0.0;
    if (NORM) {
        squares = dot(a * a + b * b + c * c + d * d, vec4<f32>(1.0));
        a *= norm4(quad);
        b *= norm4(quad + 1u);
        c *= norm4(quad + 2u);
        d *= norm4(quad + 3u);
    }
    let sum = dot(a + b + c + d, vec4<f32>(1.0));
    return Sixteen(a * factor, b * factor, c * factor, d * factor, sum, squares);
}
