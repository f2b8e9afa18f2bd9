// x beside a block of 32 quantised elements.
const PARTS: u32 = 4u; // of 8 elements in a block
const TURN: u32 = 7u; // see product_staged.wgsl
override BLOCKS: u32; // of a row

// z: x times SPREAD, which undoes where in a word the format's integers stand.
struct Input {
    z0: vec4<f32>,
    z1: vec4<f32>,
    z2: vec4<f32>,
    z3: vec4<f32>,
    z4: vec4<f32>,
    z5: vec4<f32>,
    z6: vec4<f32>,
    z7: vec4<f32>,
    low: f32, // sum of elements 0 … 15
    high: f32, // sum of elements 16 … 31
    squares: f32,
}

// The x of block `block`; times the norm weight if the product normalises.
fn input(row: u32, block: u32) -> Input {
    let quad = 8u * block;
    var a = x4(row, quad);
    var b = x4(row, quad + 1u);
    var c = x4(row, quad + 2u);
    var d = x4(row, quad + 3u);
    var e = x4(row, quad + 4u);
    var f = x4(row, quad + 5u);
    var g = x4(row, quad + 6u);
    var h = x4(row, quad + 7u);
    var squares = 0.0;
    if (NORM) {
        let sum = a * a + b * b + c * c + d * d + e * e + f * f + g * g + h * h;
        squares = dot(sum, vec4<f32>(1.0));
        a *= norm4(quad);
        b *= norm4(quad + 1u);
        c *= norm4(quad + 2u);
        d *= norm4(quad + 3u);
        e *= norm4(quad + 4u);
        f *= norm4(quad + 5u);
        g *= norm4(quad + 6u);
        h *= norm4(quad + 7u);
    }
    let low = dot(a + b + c + d, vec4<f32>(1.0));
    let high = dot(e + f + g + h, vec4<f32>(1.0));
    return Input(
        a * SPREAD, b * SPREAD, c * SPREAD, d * SPREAD,
        e * SPREAD, f * SPREAD, g * SPREAD, h * SPREAD,
        low, high, squares
    );
}

// Quads of x that the two quads of `part` meet: low nibbles hold elements 0 … 15, high ones the
// rest.
fn part_quads(part: u32) -> vec2<u32> {
    let quad = 8u * (part / 4u) + part % 4u;
    return vec2<u32>(quad, quad + 4u);
}
