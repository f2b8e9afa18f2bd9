// What both shapes of an indexer's scores share: Σ_i w_i · relu(q_i·k_j · e^-½) over I heads, of
// each row with each key that it may choose (zllm.attention.dsa). Key j is that of RATE tokens and
// lies with the last of them. Rows that may choose all of their keys need no scores.
@group(0) @binding(0) var<storage, read> q: array<vec4<f32>>; // [R, I, e]
@group(0) @binding(1) var<storage, read> head_weights: array<f32>; // [R, I]
@group(0) @binding(2) var<storage, read> keys: array<vec4<f32>>; // [slots, e]
@group(0) @binding(3) var<storage, read> step: array<i32>;
@group(0) @binding(4) var<storage, read_write> scores: array<f32>; // [ROWS, SCORES_STRIDE]

override ROWS: u32; // of this dispatch, from BEGIN on
override BEGIN: u32;
override HEADS: u32; // I
override QUADS: u32; // of a key
override SCALE: f32;
override RATE: u32;
override MOST_CHOSEN: u32;
override SCORES_STRIDE: u32;
override VALID_ROWS: u32; // offsets of step words
override POSITION: u32;
override SEQ: u32;
override TABLE: u32;
override ENTRIES: u32;
override PAGE_SLOTS: u32;
override Q_OFFSET: u32;
override Q_STRIDE: u32;
override WEIGHTS_OFFSET: u32;
override WEIGHTS_STRIDE: u32;

// How many keys the row scores.
fn scored(row: u32) -> u32 {
    if (row >= u32(step[VALID_ROWS])) {
        return 0u;
    }
    let candidates = (u32(step[POSITION + row]) + 1u) / RATE;
    return select(0u, candidates, candidates > MOST_CHOSEN);
}

fn key_start(row: u32, key: u32) -> u32 {
    let seq = u32(step[SEQ + row]);
    return page_slot(TABLE, ENTRIES, PAGE_SLOTS, seq, (key + 1u) * RATE - 1u) * QUADS;
}
