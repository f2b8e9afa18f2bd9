// Any stored format of blocks to the planes of codes.wgsl and the scales behind them.
@group(0) @binding(0) var<storage, read> raw: array<u32>;
@group(0) @binding(1) var<storage, read_write> out: array<u32>;

override ROWS: u32;
override RAW_ROW_WORDS: u32;
override ROW_WORDS: u32; // as written
override BLOCKS: u32; // of 32 elements in a row
override SCALE_WORDS: u32; // of a row

const CODE_WORDS: u32 = NIBBLES + PAIRS + BITS; // of a block

// One thread writes the codes of one block, or one word of scales.
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let items = BLOCKS + SCALE_WORDS;
    for (var i = id.x; i < ROWS * items; i += 64u * groups.x) {
        let row = i / items;
        let item = i % items;
        if (item < BLOCKS) {
            repack_block(row, item);
        } else {
            let at = item - BLOCKS;
            out[row * ROW_WORDS + CODE_WORDS * BLOCKS + at] = scale_word(row, at);
        }
    }
}

fn repack_block(row: u32, block: u32) {
    var nibbles = vec4<u32>();
    var pairs = vec2<u32>();
    var bits = 0u;
    for (var e = 0u; e < 32u; e++) {
        let c = code(row, block, e);
        let k = e / 4u;
        let lane = 8u * (e % 4u);
        nibbles[k % 4u] |= (c & 15u) << (lane + 4u * (k / 4u));
        pairs[k / 4u] |= (c & 3u) << (lane + 2u * (k % 4u));
        bits |= ((c >> BIT_PLACE) & 1u) << (lane + k);
    }
    let to = row * ROW_WORDS;
    if (NIBBLES > 0u) {
        for (var k = 0u; k < 4u; k++) {
            out[to + 4u * block + k] = nibbles[k];
        }
    }
    if (PAIRS > 0u) {
        let at = to + NIBBLES * BLOCKS + 2u * block;
        out[at] = pairs.x;
        out[at + 1u] = pairs.y;
    }
    if (BITS > 0u) {
        out[to + (NIBBLES + PAIRS) * BLOCKS + block] = bits;
    }
}

fn byte(row: u32, at: u32) -> u32 {
    return (raw[row * RAW_ROW_WORDS + at / 4u] >> (8u * (at % 4u))) & 0xffu;
}

fn half(row: u32, at: u32) -> u32 {
    return byte(row, at) | (byte(row, at + 1u) << 8u);
}

// f16 d at `at` beside two int8 factors.
fn scale_factors(row: u32, at: u32, first: u32, second: u32) -> u32 {
    return half(row, at) | ((first & 0xffu) << 16u) | (second << 24u);
}
