// What both shapes of compressed attention share (zllm.attention.compressed). One head of keys, the
// values too, serves all queries. A row sees its last WINDOW raw keys, then entries: all that are
// complete at its position, or the CHOSEN ones. An entry lies with the last of its RATE tokens.
@group(0) @binding(0) var<storage, read> q: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> raw: array<vec4<f32>>; // [slots, K]
@group(0) @binding(2) var<storage, read> entries: array<vec4<f32>>; // [slots, K]
@group(0) @binding(3) var<storage, read> chosen: array<i32>; // [R, CHOSEN]
@group(0) @binding(4) var<storage, read> step: array<i32>;
@group(0) @binding(5) var<storage, read> sinks: array<f32>; // [H]
@group(0) @binding(6) var<storage, read_write> out: array<vec4<f32>>;

override HEADS: u32;
override QUADS: u32; // of a head
override SCALE: f32;
override WINDOW: u32;
override RATE: u32; // 0: there are no entries
override CHOSEN: u32; // 0: all
override SEQ: u32; // offsets of step words
override POSITION: u32;
override VALID_ROWS: u32;
override RAW_TABLE: u32;
override RAW_ENTRIES: u32; // of a sequence in the page table
override RAW_PAGE_SLOTS: u32;
override FAR_TABLE: u32; // of the entries
override FAR_ENTRIES: u32;
override FAR_PAGE_SLOTS: u32;
override Q_OFFSET: u32;
override Q_STRIDE: u32;
override CHOSEN_OFFSET: u32;
override CHOSEN_STRIDE: u32;
override OUT_OFFSET: u32;
override OUT_STRIDE: u32;

// Less than any score, yet finite.
const LOWEST: f32 = -3.0e38;
// A key's place: of a raw key its first quad, of an entry that and FAR.
const FAR: u32 = 0x80000000u;
const NOWHERE: u32 = 0xffffffffu;

fn near_keys(position: u32) -> u32 {
    return min(position + 1u, WINDOW);
}

fn all_keys(position: u32) -> u32 {
    if (RATE == 0u) {
        return near_keys(position);
    }
    let complete = (position + 1u) / max(RATE, 1u);
    return near_keys(position) + select(complete, min(complete, CHOSEN), CHOSEN > 0u);
}

// The place of the i-th key that a row sees.
fn place(row: u32, seq: u32, position: u32, i: u32) -> u32 {
    let near = near_keys(position);
    if (i < near) {
        let at = position + 1u - near + i;
        return page_slot(RAW_TABLE, RAW_ENTRIES, RAW_PAGE_SLOTS, seq, at) * QUADS;
    }
    var entry = i32(i - near);
    if (CHOSEN > 0u) {
        entry = chosen[CHOSEN_OFFSET + row * CHOSEN_STRIDE + i - near];
        if (entry < 0) {
            return NOWHERE;
        }
    }
    let last = (u32(entry) + 1u) * RATE - 1u;
    return page_slot(FAR_TABLE, FAR_ENTRIES, FAR_PAGE_SLOTS, seq, last) * QUADS + FAR;
}

fn key_quad(at: u32, quad: u32) -> vec4<f32> {
    if (at == NOWHERE) {
        return vec4<f32>();
    }
    if (at >= FAR) {
        return entries[at - FAR + quad];
    }
    return raw[at + quad];
}
