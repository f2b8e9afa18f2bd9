// Turns the range [FIRST, FIRST + ROTATED) of each head by its row's angles, copies the rest.
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> angles: array<f32>;
@group(0) @binding(2) var<storage, read> step: array<i32>;
@group(0) @binding(3) var<storage, read_write> out: array<f32>;

override ROWS: u32;
override HEADS: u32;
override HEAD_SIZE: u32;
override FIRST: u32;
override X_OFFSET: u32;
override X_STRIDE: u32;
override OUT_OFFSET: u32;
override OUT_STRIDE: u32;

// One thread moves a pair, or one number that does not turn.
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let units = HEAD_SIZE - ROTATED / 2u;
    for (var i = id.x; i < ROWS * HEADS * units; i += 64u * groups.x) {
        let row = i / (HEADS * units);
        let head = ((i / units) % HEADS) * HEAD_SIZE;
        let origin = X_OFFSET + row * X_STRIDE + head;
        move_unit(row, origin, OUT_OFFSET + row * OUT_STRIDE + head, i % units);
    }
}

fn move_unit(row: u32, origin: u32, to: u32, unit: u32) {
    let half = ROTATED / 2u;
    if (unit >= half) {
        let left = unit - half;
        let at = left + select(0u, ROTATED, left >= FIRST);
        out[to + at] = x[origin + at];
        return;
    }
    let at = pair_places(unit) + FIRST;
    let turned = turn(vec2<f32>(x[origin + at.x], x[origin + at.y]), row, unit);
    out[to + at.x] = turned.x;
    out[to + at.y] = turned.y;
}
