// x beside a block of 32 quantised elements.
const PARTS: u32 = 4u; // of 8 elements in a block
const TURN: u32 = 7u; // see product_staged.wgsl
override BLOCKS: u32; // of a row

// z: x times SPREAD_LOW or _HIGH, which undo where in a word the format's integers stand.
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
    let p = sixteen(row, 8u * block, SPREAD_LOW);
    let q = sixteen(row, 8u * block + 4u, SPREAD_HIGH);
    return Input(
        p.a, p.b, p.c, p.d, q.a, q.b, q.c, q.d, p.sum, q.sum, p.squares + q.squares
    );
}

// Quads of x that the two quads of `part` meet: low nibbles hold elements 0 … 15, high ones the
// rest.
fn part_quads(part: u32) -> vec2<u32> {
    let quad = 8u * (part / 4u) + part % 4u;
    return vec2<u32>(quad, quad + 4u);
}
