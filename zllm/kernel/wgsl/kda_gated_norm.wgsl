// One workgroup a head: x / sqrt(mean(x²) + eps) ⊙ w ⊙ σ(gate). A row has HEADS of SIZE columns.
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> gate: array<f32>;
@group(0) @binding(2) var<storage, read> w: array<f32>;
@group(0) @binding(3) var<storage, read_write> out: array<f32>;

override ROWS: u32;
override HEADS: u32;
override SIZE: u32;
override EPS: f32;
override X_OFFSET: u32;
override X_STRIDE: u32;
override GATE_OFFSET: u32;
override GATE_STRIDE: u32;
override OUT_OFFSET: u32;
override OUT_STRIDE: u32;

fn run(group: vec3<u32>, groups: vec3<u32>, lane: u32, size: u32) {
    for (var i = group.x; i < ROWS * HEADS; i += groups.x) {
        let row = i / HEADS;
        let column = (i % HEADS) * SIZE;
        let origin = X_OFFSET + row * X_STRIDE + column;
        let gates = GATE_OFFSET + row * GATE_STRIDE + column;
        let to = OUT_OFFSET + row * OUT_STRIDE + column;
        var squares = 0.0;
        for (var c = lane; c < SIZE; c += THREADS) {
            squares += x[origin + c] * x[origin + c];
        }
        let total = reduce_sum(vec4<f32>(squares), lane, size).x;
        let scale = 1.0 / sqrt(total / f32(SIZE) + EPS);
        for (var c = lane; c < SIZE; c += THREADS) {
            out[to + c] = x[origin + c] * scale * w[c] * logistic(gate[gates + c]);
        }
    }
}
