// Rows of a table for the round's tokens, times FACTOR. Token -1 is the one drawn last for the
// row's sequence.
@group(0) @binding(1) var<storage, read> step: array<i32>;
@group(0) @binding(2) var<storage, read> carry_token: array<i32>;
@group(0) @binding(3) var<storage, read_write> out: array<f32>;

override COLUMNS: u32;
override FIRST_ROW: u32; // of the bank in the table
override ROWS: u32; // of the bank
override TOKENS: u32;
override TOKEN: u32; // offsets of step words
override SEQ: u32;
override LANE: u32;
override OUT_OFFSET: u32;
override OUT_STRIDE: u32;
override FACTOR: f32;

// One thread decodes eight elements.
@compute @workgroup_size(32)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let parts = BLOCKS * PARTS;
    for (var i = id.x; i < TOKENS * parts; i += 32u * groups.x) {
        let t = i / parts;
        let p = i % parts;
        var token = step[TOKEN + t];
        if (token < 0) {
            token = carry_token[step[LANE + u32(step[SEQ + t])]];
        }
        let row = u32(token) - FIRST_ROW;
        if (row < ROWS) {
            let v = decode(row_start(row), p);
            let quads = part_quads(p);
            store(t, quads.x, v[0]);
            store(t, quads.y, v[1]);
        }
    }
}

fn store(t: u32, quad: u32, v: vec4<f32>) {
    for (var i = 0u; i < 4u; i++) {
        let column = 4u * quad + i;
        if (column < COLUMNS) {
            out[OUT_OFFSET + t * OUT_STRIDE + column] = FACTOR * v[i];
        }
    }
}
