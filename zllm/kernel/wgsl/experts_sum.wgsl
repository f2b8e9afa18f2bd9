// Each row's sum over its pairs.
@group(0) @binding(0) var<storage, read> products: array<f32>; // [R · CHOSEN, COLUMNS]
@group(0) @binding(1) var<storage, read> ids: array<u32>;
@group(0) @binding(2) var<storage, read> step: array<i32>;
@group(0) @binding(3) var<storage, read_write> out: array<f32>;

override COLUMNS: u32;
override CHOSEN: u32;
override EXPERTS: u32;
override VALID_ROWS: u32; // offset of a step word
override IDS_OFFSET: u32;
override IDS_STRIDE: u32;
override OUT_OFFSET: u32;
override OUT_STRIDE: u32;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let count = u32(step[VALID_ROWS]) * COLUMNS;
    for (var i = id.x; i < count; i += 64u * groups.x) {
        let row = i / COLUMNS;
        let column = i % COLUMNS;
        var sum = 0.0;
        for (var slot = 0u; slot < CHOSEN; slot++) {
            if (ids[IDS_OFFSET + row * IDS_STRIDE + slot] < EXPERTS) {
                sum += products[(row * CHOSEN + slot) * COLUMNS + column];
            }
        }
        out[OUT_OFFSET + row * OUT_STRIDE + column] = sum;
    }
}
