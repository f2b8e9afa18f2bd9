// What both shapes of grouped-query attention share. A query sees its own sequence's positions up
// to its own.
@group(0) @binding(0) var<storage, read> q: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> keys: array<vec4<f32>>; // [slots, G, K]
@group(0) @binding(2) var<storage, read> values: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> step: array<i32>;
@group(0) @binding(4) var<storage, read_write> out: array<vec4<f32>>;

override HEADS: u32;
override KV_HEADS: u32;
override QUADS: u32; // of a head
override SCALE: f32;
override ROWS: u32;
override SEQ: u32; // offsets of step words
override POSITION: u32;
override VALID_ROWS: u32;
override TABLE: u32;
override ENTRIES: u32; // of a sequence in the page table
override PAGE_SLOTS: u32;
override Q_OFFSET: u32;
override Q_STRIDE: u32;
override OUT_OFFSET: u32;
override OUT_STRIDE: u32;

// Less than any score, yet finite.
const LOWEST: f32 = -3.0e38;

// Where the key and the value of a position begin, in quads.
fn entry(seq: u32, position: u32, g: u32) -> u32 {
    let page = u32(step[TABLE + seq * ENTRIES + position / PAGE_SLOTS]);
    return ((page * PAGE_SLOTS + position % PAGE_SLOTS) * KV_HEADS + g) * QUADS;
}
