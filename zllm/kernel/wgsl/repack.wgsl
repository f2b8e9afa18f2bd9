// Rows of byte blocks to rows of word blocks: HEAD bytes widened to a word of their own, then the rest.
@group(0) @binding(0) var<storage, read> raw: array<u32>;
@group(0) @binding(1) var<storage, read_write> out: array<u32>;

override ROWS: u32;
override RAW_ROW_WORDS: u32;
override BLOCKS: u32; // of a row
override BLOCK_BYTES: u32; // in the file
override HEAD_BYTES: u32;
override BLOCK_WORDS: u32; // as written
override ROW_BYTES: u32; // in the file; what is written beyond is zero

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let row_words = BLOCKS * BLOCK_WORDS;
    for (var i = id.x; i < ROWS * row_words; i += 64u * groups.x) {
        let row = i / row_words;
        let block = i % row_words / BLOCK_WORDS;
        let word = i % BLOCK_WORDS;
        let at = block * BLOCK_BYTES;
        if (HEAD_BYTES == 0u) {
            out[i] = bytes_at(row, at + 4u * word, 4u);
        } else if (word == 0u) {
            out[i] = bytes_at(row, at, HEAD_BYTES);
        } else {
            out[i] = bytes_at(row, at + HEAD_BYTES + 4u * (word - 1u), 4u);
        }
    }
}

fn bytes_at(row: u32, at: u32, count: u32) -> u32 {
    var word = 0u;
    for (var i = 0u; i < count; i++) {
        let byte = at + i;
        if (byte < ROW_BYTES) {
            word |= ((raw[row * RAW_ROW_WORDS + byte / 4u] >> (8u * (byte % 4u))) & 0xffu) << (8u * i);
        }
    }
    return word;
}
