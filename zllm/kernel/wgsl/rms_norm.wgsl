// One workgroup a row: x / sqrt(mean(x²) + eps) ⊙ w.
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> w: array<f32>;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;

override COLUMNS: u32;
override ROWS: u32;
override EPS: f32;
override X_OFFSET: u32;
override X_STRIDE: u32;
override OUT_OFFSET: u32;
override OUT_STRIDE: u32;

fn run(group: vec3<u32>, groups: vec3<u32>, lane: u32, size: u32) {
    for (var row = group.x; row < ROWS; row += groups.x) {
        let origin = X_OFFSET + row * X_STRIDE;
        let to = OUT_OFFSET + row * OUT_STRIDE;
        var squares = 0.0;
        for (var i = lane; i < COLUMNS; i += THREADS) {
            squares += x[origin + i] * x[origin + i];
        }
        let total = reduce_sum(vec4<f32>(squares), lane, size).x;
        let scale = 1.0 / sqrt(total / f32(COLUMNS) + EPS);
        for (var i = lane; i < COLUMNS; i += THREADS) {
            out[to + i] = x[origin + i] * scale * w[i];
        }
    }
}
