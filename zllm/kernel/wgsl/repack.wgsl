// Rows of byte blocks to rows of all their integers and then all their scales, both aligned.
@group(0) @binding(0) var<storage, read> raw: array<u32>;
@group(0) @binding(1) var<storage, read_write> out: array<u32>;

override ROWS: u32;
override RAW_ROW_WORDS: u32;
override ROW_BYTES: u32; // in the file; what is written beyond is zero
override BLOCKS: u32; // of a row
override BLOCK_BYTES: u32; // in the file: scales, then integers
override SCALE_BYTES: u32;
override ROW_WORDS: u32; // as written

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    for (var i = id.x; i < ROWS * ROW_WORDS; i += 64u * groups.x) {
        let row = i / ROW_WORDS;
        var word = 0u;
        for (var j = 0u; j < 4u; j++) {
            word |= byte(row, source(4u * (i % ROW_WORDS) + j)) << (8u * j);
        }
        out[i] = word;
    }
}

// Where in the file's row byte `at` of the written row comes from.
fn source(at: u32) -> u32 {
    let integers = BLOCK_BYTES - SCALE_BYTES; // of a block
    if (at < BLOCKS * integers) {
        return at / integers * BLOCK_BYTES + SCALE_BYTES + at % integers;
    }
    if (SCALE_BYTES == 0u) {
        return ROW_BYTES;
    }
    let size = max(SCALE_BYTES, 1u); // Tint divides overrides, and refuses 0, in branches not taken
    let scale = at - BLOCKS * integers;
    return scale / size * BLOCK_BYTES + scale % size;
}

fn byte(row: u32, at: u32) -> u32 {
    if (at >= ROW_BYTES) {
        return 0u;
    }
    return (raw[row * RAW_ROW_WORDS + at / 4u] >> (8u * (at % 4u))) & 0xffu;
}
