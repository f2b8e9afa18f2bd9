// activation(gate) ⊙ up, element by element.
@group(0) @binding(0) var<storage, read> gate: array<f32>;
@group(0) @binding(1) var<storage, read> up: array<f32>;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;

override COLUMNS: u32;
override ROWS: u32;
override GATE_OFFSET: u32;
override GATE_STRIDE: u32;
override UP_OFFSET: u32;
override UP_STRIDE: u32;
override OUT_OFFSET: u32;
override OUT_STRIDE: u32;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    for (var i = id.x; i < ROWS * COLUMNS; i += 64u * groups.x) {
        let row = i / COLUMNS;
        let column = i % COLUMNS;
        let z = gate[GATE_OFFSET + row * GATE_STRIDE + column];
        let u = up[UP_OFFSET + row * UP_STRIDE + column];
        out[OUT_OFFSET + row * OUT_STRIDE + column] = activate(z, u);
    }
}
