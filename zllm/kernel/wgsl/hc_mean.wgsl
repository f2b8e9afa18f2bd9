// The mean of a row's residual streams.
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> out: array<f32>;

override ROWS: u32;
override STREAMS: u32;
override WIDTH: u32;
override X_OFFSET: u32;
override X_STRIDE: u32;
override OUT_OFFSET: u32;
override OUT_STRIDE: u32;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    for (var i = id.x; i < ROWS * WIDTH; i += 64u * groups.x) {
        let row = i / WIDTH;
        let column = i % WIDTH;
        var sum = 0.0;
        for (var n = 0u; n < STREAMS; n++) {
            sum += x[X_OFFSET + row * X_STRIDE + n * WIDTH + column];
        }
        out[OUT_OFFSET + row * OUT_STRIDE + column] = sum / f32(STREAMS);
    }
}
