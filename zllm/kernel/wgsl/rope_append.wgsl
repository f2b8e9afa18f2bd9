// Turns q and k by their rows' angles, writes k and v to the rows' slots and q to `out`.
@group(0) @binding(0) var<storage, read> q: array<f32>;
@group(0) @binding(1) var<storage, read> k: array<f32>;
@group(0) @binding(2) var<storage, read> v: array<f32>;
@group(0) @binding(3) var<storage, read> angles: array<f32>;
@group(0) @binding(4) var<storage, read> step: array<i32>;
@group(0) @binding(5) var<storage, read_write> keys: array<f32>; // [slots, G, K]
@group(0) @binding(6) var<storage, read_write> values: array<f32>;
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

// One thread moves two numbers of a head: a pair, or two that do not turn.
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let pairs = HEAD_SIZE / 2u;
    let heads = HEADS + 2u * KV_HEADS;
    let rows = u32(step[VALID_ROWS]);
    for (var i = id.x; i < rows * heads * pairs; i += 64u * groups.x) {
        let row = i / (heads * pairs);
        move_pair(row, (i / pairs) % heads, i % pairs);
    }
}

fn move_pair(row: u32, head: u32, pair: u32) {
    let at = pair_places(pair);
    if (head < HEADS) {
        let origin = Q_OFFSET + row * Q_STRIDE + head * HEAD_SIZE;
        let turned = turn(vec2<f32>(q[origin + at.x], q[origin + at.y]), row, pair);
        let to = OUT_OFFSET + row * OUT_STRIDE + head * HEAD_SIZE;
        out[to + at.x] = turned.x;
        out[to + at.y] = turned.y;
        return;
    }
    let g = (head - HEADS) % KV_HEADS;
    let to = (u32(step[ROW_SLOT + row]) * KV_HEADS + g) * HEAD_SIZE;
    if (head < HEADS + KV_HEADS) {
        let origin = K_OFFSET + row * K_STRIDE + g * HEAD_SIZE;
        let turned = turn(vec2<f32>(k[origin + at.x], k[origin + at.y]), row, pair);
        keys[to + at.x] = turned.x;
        keys[to + at.y] = turned.y;
    } else {
        let origin = V_OFFSET + row * V_STRIDE + g * HEAD_SIZE;
        values[to + at.x] = v[origin + at.x];
        values[to + at.y] = v[origin + at.y];
    }
}
