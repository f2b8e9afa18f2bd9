// Log decay of each key channel from its projection: bound σ(e^a_log (a + bias)), or without a
// bound -e^a_log softplus(a + bias).
@group(0) @binding(0) var<storage, read> a: array<f32>;
@group(0) @binding(1) var<storage, read> a_log: array<f32>; // of each head
@group(0) @binding(2) var<storage, read> bias: array<f32>;
@group(0) @binding(3) var<storage, read_write> out: array<f32>;

override COLUMNS: u32;
override ROWS: u32;
override SIZE: u32; // of a head
override BOUND: f32; // 0: none
override A_OFFSET: u32;
override A_STRIDE: u32;
override OUT_OFFSET: u32;
override OUT_STRIDE: u32;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    for (var i = id.x; i < ROWS * COLUMNS; i += 64u * groups.x) {
        let row = i / COLUMNS;
        let column = i % COLUMNS;
        let biased = a[A_OFFSET + row * A_STRIDE + column] + bias[column];
        let rate = exp(a_log[column / SIZE]);
        var decay = -rate * softplus(biased);
        if (BOUND != 0.0) {
            decay = BOUND * logistic(rate * biased);
        }
        out[OUT_OFFSET + row * OUT_STRIDE + column] = decay;
    }
}

// log(1 + e^z); 1 + e^z would lose what is small.
fn softplus(z: f32) -> f32 {
    let e = exp(min(z, 20.0));
    let small = e * (1.0 - e * (0.5 - e / 3.0));
    return select(select(log(1.0 + e), small, e < 0.01), z, z > 20.0);
}
