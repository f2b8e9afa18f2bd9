// What both shapes of grouped-query attention share. A query sees its own sequence's positions up
// to its own, the last WINDOW of them if that is not 0.
@group(0) @binding(0) var<storage, read> q: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> keys: array<vec4<f32>>; // [slots, G, K]
@group(0) @binding(2) var<storage, read> values: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> step: array<i32>;
@group(0) @binding(4) var<storage, read> sinks: array<f32>; // [H]
@group(0) @binding(5) var<storage, read_write> out: array<vec4<f32>>;

override HEADS: u32;
override KV_HEADS: u32;
override QUADS: u32; // of a head
override SCALE: f32;
override WINDOW: u32;
override HAS_SINKS: bool; // a logit per head joins the softmax and its share is dropped
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

fn first_seen(last: u32) -> u32 {
    return select(0u, last + 1u - WINDOW, WINDOW > 0u && last >= WINDOW);
}

// Maximum and total of a softmax over nothing yet but the sink; it may be counted only once.
fn begin(head: u32, sunk: bool) -> vec2<f32> {
    if (HAS_SINKS && sunk) {
        return vec2<f32>(sinks[head], 1.0);
    }
    return vec2<f32>(LOWEST, 0.0);
}

// Where the key and the value of a position begin, in quads.
fn entry(seq: u32, position: u32, g: u32) -> u32 {
    let page = u32(step[TABLE + seq * ENTRIES + position / PAGE_SLOTS]);
    return ((page * PAGE_SLOTS + position % PAGE_SLOTS) * KV_HEADS + g) * QUADS;
}
