// Copies rows, bit by bit; row r comes from row step[INDEX + r] if INDEXED.
@group(0) @binding(0) var<storage, read> x: array<u32>;
@group(0) @binding(1) var<storage, read> step: array<i32>;
@group(0) @binding(2) var<storage, read_write> out: array<u32>;

override COLUMNS: u32;
override ROWS: u32;
override X_OFFSET: u32;
override X_STRIDE: u32;
override OUT_OFFSET: u32;
override OUT_STRIDE: u32;
override INDEXED: bool;
override INDEX: u32 = 0u;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    for (var i = id.x; i < ROWS * COLUMNS; i += 64u * groups.x) {
        let row = i / COLUMNS;
        let column = i % COLUMNS;
        var origin = row;
        if (INDEXED) {
            origin = u32(step[INDEX + row]);
        }
        out[OUT_OFFSET + row * OUT_STRIDE + column] = x[X_OFFSET + origin * X_STRIDE + column];
    }
}
