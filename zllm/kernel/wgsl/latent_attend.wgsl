// What both shapes of attention over latents share: one key for all heads, whose first RANK_QUADS
// quads are the value too. A row sees its sequence's positions up to its own, or those chosen for
// it. With several splits of a row's keys each leaves (maximum, total) and unscaled sums in `mixed`
// for latent_combine.
@group(0) @binding(0) var<storage, read> queries: array<vec4<f32>>; // [TOKENS, H, QUADS], scaled
@group(0) @binding(1) var<storage, read> latents: array<vec4<f32>>; // [slots, QUADS]
@group(0) @binding(2) var<storage, read> step: array<i32>;
@group(0) @binding(3) var<storage, read> chosen: array<i32>; // positions, -1 none
@group(0) @binding(4) var<storage, read_write> mixed: array<vec4<f32>>; // [TOKENS, H, RANK_QUADS]

override HEADS: u32;
override QUADS: u32;
override RANK_QUADS: u32;
override SPLITS: u32;
override SPLIT_KEYS: u32;
override FIRST_ROW: u32; // of the round, where these TOKENS rows begin
override TOKENS: u32;
override HAS_CHOSEN: bool;
override CHOSEN: u32; // of a row
override CHOSEN_OFFSET: u32;
override CHOSEN_STRIDE: u32;
override SEQ: u32; // offsets of step words
override POSITION: u32;
override VALID_ROWS: u32;
override TABLE: u32;
override ENTRIES: u32; // of a sequence in the page table
override PAGE_SLOTS: u32;

// Less than any score, yet finite.
const LOWEST: f32 = -3.0e38;

fn valid(token: u32) -> bool {
    return FIRST_ROW + token < u32(step[VALID_ROWS]);
}

// How many keys a row has; of chosen ones, some may be none.
fn key_count(token: u32) -> u32 {
    if (HAS_CHOSEN) {
        return CHOSEN;
    }
    return u32(step[POSITION + FIRST_ROW + token]) + 1u;
}

// The position of a row's key, -1 for none.
fn key_position(token: u32, key: u32) -> i32 {
    if (HAS_CHOSEN) {
        return chosen[CHOSEN_OFFSET + (FIRST_ROW + token) * CHOSEN_STRIDE + key];
    }
    return i32(key);
}

// Where the latent of a position begins, in quads; of none, that of position 0.
fn latent_start(token: u32, position: i32) -> u32 {
    let p = u32(max(position, 0));
    let seq = u32(step[SEQ + FIRST_ROW + token]);
    let page = u32(step[TABLE + seq * ENTRIES + p / PAGE_SLOTS]);
    return (page * PAGE_SLOTS + p % PAGE_SLOTS) * QUADS;
}

// `ends`: maximum and total of the split's softmax. A row that sees nothing gives zeros.
fn store_sum(unit: u32, split: u32, quad: u32, sum: vec4<f32>, ends: vec2<f32>) {
    if (SPLITS == 1u) {
        mixed[unit * RANK_QUADS + quad] = sum * select(0.0, 1.0 / ends.y, ends.y > 0.0);
        return;
    }
    let to = (unit * SPLITS + split) * (RANK_QUADS + 1u);
    mixed[to + 1u + quad] = sum;
    if (quad == 0u) {
        mixed[to] = vec4<f32>(ends, 0.0, 0.0);
    }
}
