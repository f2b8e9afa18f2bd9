// Writes each row's index key and gate to its slot, and the key of the pool that the row completes:
// per channel a softmax of gate + ape over the pool's tokens weighs their keys. Tokens of this
// round are read from the inputs, as their slots are only being written; older ones from there.
@group(0) @binding(0) var<storage, read> k: array<f32>;
@group(0) @binding(1) var<storage, read> gate: array<f32>;
@group(0) @binding(2) var<storage, read> ape: array<f32>; // [POOL, SIZE]
@group(0) @binding(3) var<storage, read> step: array<i32>;
@group(0) @binding(4) var<storage, read_write> keys: array<f32>; // [slots, SIZE]
@group(0) @binding(5) var<storage, read_write> gates: array<f32>;
@group(0) @binding(6) var<storage, read_write> pools: array<f32>;

override SIZE: u32;
override POOL: u32;
override ROW_SLOT: u32; // offsets of step words
override SEQ: u32;
override POSITION: u32;
override FIRST_ROW: u32;
override VALID_ROWS: u32;
override TABLE: u32;
override ENTRIES: u32; // of a sequence in the page table
override PAGE_SLOTS: u32;
override K_OFFSET: u32;
override K_STRIDE: u32;
override GATE_OFFSET: u32;
override GATE_STRIDE: u32;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let count = u32(step[VALID_ROWS]) * SIZE;
    for (var i = id.x; i < count; i += 64u * groups.x) {
        let row = i / SIZE;
        let channel = i % SIZE;
        let to = u32(step[ROW_SLOT + row]) * SIZE + channel;
        keys[to] = k[K_OFFSET + row * K_STRIDE + channel];
        gates[to] = gate[GATE_OFFSET + row * GATE_STRIDE + channel];
        if ((u32(step[POSITION + row]) + 1u) % POOL == 0u) {
            pools[to] = pool_key(row, channel);
        }
    }
}

// Of the pool whose last token is the row's.
fn pool_key(row: u32, channel: u32) -> f32 {
    var peak = token(row, channel, 0u).y;
    for (var back = 1u; back < POOL; back++) {
        peak = max(peak, token(row, channel, back).y);
    }
    var total = 0.0;
    var sum = 0.0;
    for (var back = 0u; back < POOL; back++) {
        let one = token(row, channel, back);
        let weight = exp(one.y - peak);
        total += weight;
        sum += weight * one.x;
    }
    return sum / total;
}

// (key, gate + ape) of the token that lies `back` before the row's.
fn token(row: u32, channel: u32, back: u32) -> vec2<f32> {
    let seq = u32(step[SEQ + row]);
    let place = ape[(POOL - 1u - back) * SIZE + channel];
    if (back <= row - u32(step[FIRST_ROW + seq])) {
        let from_row = row - back;
        return vec2<f32>(
            k[K_OFFSET + from_row * K_STRIDE + channel],
            gate[GATE_OFFSET + from_row * GATE_STRIDE + channel] + place
        );
    }
    let position = u32(step[POSITION + row]) - back;
    let at = page_slot(TABLE, ENTRIES, PAGE_SLOTS, seq, position) * SIZE + channel;
    return vec2<f32>(keys[at], gates[at] + place);
}
