// One workgroup a run of COLUMNS, eight loads a thread in flight:
// x / sqrt(mean(x²) + eps) ⊙ (w + offset). A row has RUNS of them.
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> w: array<f32>;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;

override COLUMNS: u32;
override ROWS: u32;
override RUNS: u32;
override EPS: f32;
override OFFSET: f32;
override X_OFFSET: u32;
override X_STRIDE: u32;
override OUT_OFFSET: u32;
override OUT_STRIDE: u32;

fn run(group: vec3<u32>, groups: vec3<u32>, lane: u32, size: u32) {
    for (var i = group.x; i < ROWS * RUNS; i += groups.x) {
        let row = i / RUNS;
        let column = (i % RUNS) * COLUMNS;
        let origin = X_OFFSET + row * X_STRIDE + column;
        let to = OUT_OFFSET + row * OUT_STRIDE + column;
        var squares = 0.0;
        for (var c = lane; c < COLUMNS; c += 8u * THREADS) {
            // unroll k 8
            let v_$k = element(origin, c + $ku * THREADS);
            // end
            // unroll k 8
            squares += v_$k * v_$k;
            // end
        }
        let total = reduce_sum(vec4<f32>(squares), lane, size).x;
        let scale = 1.0 / sqrt(total / f32(COLUMNS) + EPS);
        for (var c = lane; c < COLUMNS; c += 8u * THREADS) {
            // unroll k 8
            let c_$k = c + $ku * THREADS;
            let x_$k = element(origin, c_$k);
            let w_$k = w[min(c_$k, COLUMNS - 1u)] + OFFSET;
            // end
            // unroll k 8
            if (c_$k < COLUMNS) {
                out[to + c_$k] = x_$k * scale * w_$k;
            }
            // end
        }
    }
}

// Beyond the run there may be NaN.
fn element(origin: u32, c: u32) -> f32 {
    return select(0.0, x[origin + min(c, COLUMNS - 1u)], c < COLUMNS);
}
