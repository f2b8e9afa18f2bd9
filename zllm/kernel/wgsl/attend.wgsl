// What all shapes of grouped-query attention share, after kv_f32 or kv_f16. A query sees its own
// sequence's positions up to its own, the last WINDOW of them if that is not 0.
@group(0) @binding(0) var<storage, read> q: array<vec4<f32>>;
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

// Reads that a key takes.
fn reads() -> u32 {
    return QUADS / READ_QUADS;
}

// Where the key and the value of a position begin, in reads.
fn entry(seq: u32, position: u32, g: u32) -> u32 {
    let page = u32(step[TABLE + seq * ENTRIES + position / PAGE_SLOTS]);
    return ((page * PAGE_SLOTS + position % PAGE_SLOTS) * KV_HEADS + g) * reads();
}

// The positions [x, y) of a split: whole tiles, dealt evenly. The last splits may get none.
fn deal(first: u32, end: u32, tile: u32, split: u32, splits: u32) -> vec2<u32> {
    let tiles = (end - first + tile - 1u) / tile;
    let own = (tiles + splits - 1u) / splits * tile;
    return vec2<u32>(first + split * own, min(end, first + (split + 1u) * own));
}
