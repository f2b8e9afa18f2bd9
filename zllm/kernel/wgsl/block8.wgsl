// x beside a block of 8 plain floats.
const PARTS: u32 = 1u; // of 8 elements in a block
const TURN: u32 = 1u; // see product_staged.wgsl
override BLOCKS: u32; // of a row

struct Input {
    z0: vec4<f32>,
    z1: vec4<f32>,
    squares: f32,
}

// The x of block `block`; times the norm weight if the product normalises.
fn input(row: u32, block: u32) -> Input {
    let quad = 2u * block;
    var a = x4(row, quad);
    var b = x4(row, quad + 1u);
    let squares = dot(a, a) + dot(b, b);
    if (NORM) {
        a *= norm4(quad);
        b *= norm4(quad + 1u);
    }
    return Input(a, b, squares);
}

// Quads of x that the two quads of `part` meet.
fn part_quads(part: u32) -> vec2<u32> {
    return vec2<u32>(2u * part, 2u * part + 1u);
}
