// Turns q and k by their rows' angles, writes k and v to the rows' slots and q to `out`.
@group(0) @binding(0) var<storage, read> q: array<f32>;
@group(0) @binding(1) var<storage, read> k: array<f32>;
@group(0) @binding(2) var<storage, read> v: array<f32>;
@group(0) @binding(3) var<storage, read> angles: array<f32>;
@group(0) @binding(4) var<storage, read> step: array<i32>;
@group(0) @binding(7) var<storage, read_write> out: array<f32>;

override HEADS: u32;
override KV_HEADS: u32;
override HEAD_SIZE: u32;
override ROW_SLOT: u32; // offsets of step words
override VALID_ROWS: u32;
override Q_OFFSET: u32;
override Q_STRIDE: u32;
override K_OFFSET: u32;
override K_STRIDE: u32;
override V_OFFSET: u32;
override V_STRIDE: u32;
override OUT_OFFSET: u32;
override OUT_STRIDE: u32;

// One thread makes two neighbours of a head, since a cache may keep them in one word.
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let pairs = HEAD_SIZE / 2u;
    let heads = HEADS + 2u * KV_HEADS;
    let rows = u32(step[VALID_ROWS]);
    for (var i = id.x; i < rows * heads * pairs; i += 64u * groups.x) {
        let row = i / (heads * pairs);
        make(row, (i / pairs) % heads, 2u * (i % pairs));
    }
}

fn make(row: u32, head: u32, place: u32) {
    let mates = vec2<u32>(mate(place), mate(place + 1u));
    if (head < HEADS) {
        let origin = Q_OFFSET + row * Q_STRIDE + head * HEAD_SIZE;
        let to = OUT_OFFSET + row * OUT_STRIDE + head * HEAD_SIZE + place;
        out[to] = turned(q[origin + place], q[origin + mates.x], row, place);
        out[to + 1u] = turned(q[origin + place + 1u], q[origin + mates.y], row, place + 1u);
        return;
    }
    let g = (head - HEADS) % KV_HEADS;
    let to = ((u32(step[ROW_SLOT + row]) * KV_HEADS + g) * HEAD_SIZE + place) / 2u;
    if (head < HEADS + KV_HEADS) {
        let origin = K_OFFSET + row * K_STRIDE + g * HEAD_SIZE;
        let first = turned(k[origin + place], k[origin + mates.x], row, place);
        let second = turned(k[origin + place + 1u], k[origin + mates.y], row, place + 1u);
        keys[to] = kept(vec2<f32>(first, second));
    } else {
        let origin = V_OFFSET + row * V_STRIDE + g * HEAD_SIZE + place;
        values[to] = kept(vec2<f32>(v[origin], v[origin + 1u]));
    }
}

// The number that is turned together with that at `place`; beyond the rotated range itself.
fn mate(place: u32) -> u32 {
    if (place >= ROTATED) {
        return place;
    }
    let half = ROTATED / 2u;
    let apart = select(place + half, place - half, place >= half);
    return select(apart, place ^ 1u, INTERLEAVED);
}

fn turned(own: f32, other: f32, row: u32, place: u32) -> f32 {
    if (place >= ROTATED) {
        return own;
    }
    let half = ROTATED / 2u;
    let at = angle_row(row) * ROTATED + select(place % half, place / 2u, INTERLEAVED);
    let sine = angles[at + half];
    return own * angles[at] + other * select(sine, -sine, mate(place) > place);
}
