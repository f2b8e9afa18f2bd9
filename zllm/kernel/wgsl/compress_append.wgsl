// Each row's key and gate to its slot, and the entry of a window that the row completes: per
// channel a softmax over the window's tokens, then RMSNorm and RoPE (zllm.attention.compressed).
// One workgroup a row. Tokens of this round are read where they come from: their slots are being
// written.
@group(0) @binding(0) var<storage, read> x: array<f32>; // keys and gates of the rows
@group(0) @binding(1) var<storage, read> ape: array<f32>; // [m, width]
@group(0) @binding(2) var<storage, read> norm: array<f32>; // [K]
@group(0) @binding(3) var<storage, read> angles: array<f32>; // [context, r] of cos, then sin
@group(0) @binding(4) var<storage, read> step: array<i32>;
@group(0) @binding(5) var<storage, read_write> keys: array<f32>; // [slots, width]
@group(0) @binding(6) var<storage, read_write> gates: array<f32>;
@group(0) @binding(7) var<storage, read_write> made: array<f32>; // [slots, K]

override WIDTH: u32;
override SIZE: u32; // K, at most MOST
override RATE: u32; // m
override OVERLAP: bool; // an entry is made of the window before as well
override ROTATED: u32; // r, the last numbers of an entry
override EPS: f32;
override ROW_SLOT: u32; // offsets of step words
override VALID_ROWS: u32;
override POSITION: u32;
override SEQ: u32;
override FIRST_ROW: u32;
override TABLE: u32;
override ENTRIES: u32;
override PAGE_SLOTS: u32;
override KV_OFFSET: u32;
override KV_STRIDE: u32;
override GATE_OFFSET: u32;
override GATE_STRIDE: u32;

const MOST: u32 = 1024u;

var<workgroup> entry: array<f32, MOST>;

fn run(group: vec3<u32>, groups: vec3<u32>, lane: u32, size: u32) {
    for (var row = group.x; row < u32(step[VALID_ROWS]); row += groups.x) {
        let slot = u32(step[ROW_SLOT + row]);
        for (var c = lane; c < WIDTH; c += THREADS) {
            keys[slot * WIDTH + c] = x[KV_OFFSET + row * KV_STRIDE + c];
            gates[slot * WIDTH + c] = x[GATE_OFFSET + row * GATE_STRIDE + c];
        }
        let position = u32(step[POSITION + row]);
        if ((position + 1u) % RATE == 0u) {
            make_entry(row, position, slot, lane, size);
        }
    }
}

fn make_entry(row: u32, position: u32, slot: u32, lane: u32, size: u32) {
    var squares = 0.0;
    for (var c = lane; c < SIZE; c += THREADS) {
        let pooled = pool(row, position, c);
        entry[c] = pooled;
        squares += pooled * pooled;
    }
    // Its barriers also show every lane the whole entry.
    let total = reduce_sum(vec4<f32>(squares), lane, size).x;
    let scale = 1.0 / sqrt(total / f32(SIZE) + EPS);
    let still = SIZE - ROTATED;
    for (var c = lane; c < still; c += THREADS) {
        made[slot * SIZE + c] = entry[c] * scale * norm[c];
    }
    let first = (position + 1u - RATE) * ROTATED;
    for (var j = lane; j < ROTATED / 2u; j += THREADS) {
        let at = still + 2u * j;
        let a = entry[at] * scale * norm[at];
        let b = entry[at + 1u] * scale * norm[at + 1u];
        let c = angles[first + j];
        let s = angles[first + ROTATED / 2u + j];
        made[slot * SIZE + at] = a * c - b * s;
        made[slot * SIZE + at + 1u] = b * c + a * s;
    }
    workgroupBarrier();
}

// Channel c of the window that ends at `position`, and of the one before it: that one gives its
// first half, this one its second.
fn pool(row: u32, position: u32, c: u32) -> f32 {
    var sums = vec3<f32>(-3.0e38, 0.0, 0.0); // largest gate, powers, powers times keys
    if (OVERLAP) {
        if (position >= 2u * RATE - 1u) {
            sums = pool_window(row, position, position - RATE, c, sums);
        }
        sums = pool_window(row, position, position, SIZE + c, sums);
    } else {
        sums = pool_window(row, position, position, c, sums);
    }
    return sums.z / sums.y;
}

fn pool_window(row: u32, position: u32, last: u32, c: u32, before: vec3<f32>) -> vec3<f32> {
    let seq = u32(step[SEQ + row]);
    let new_rows = row - u32(step[FIRST_ROW + seq]); // of this round, before this row
    var sums = before;
    for (var i = 0u; i < RATE; i++) {
        let age = position - (last + 1u - RATE + i);
        var key: f32;
        var gate: f32;
        if (age <= new_rows) {
            key = x[KV_OFFSET + (row - age) * KV_STRIDE + c];
            gate = x[GATE_OFFSET + (row - age) * GATE_STRIDE + c];
        } else {
            let at = page_slot(TABLE, ENTRIES, PAGE_SLOTS, seq, position - age) * WIDTH + c;
            key = keys[at];
            gate = gates[at];
        }
        gate += ape[i * WIDTH + c];
        let higher = max(sums.x, gate);
        let kept = exp(sums.x - higher);
        let power = exp(gate - higher);
        sums = vec3<f32>(higher, sums.y * kept + power, sums.z * kept + power * key);
    }
    return sums;
}
