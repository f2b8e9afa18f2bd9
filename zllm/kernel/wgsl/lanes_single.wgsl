// Each thread works on a unit alone.
override THREADS: u32;

@compute @workgroup_size(THREADS)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    attend(id.x, 0u, 1u);
}

fn lanes_max(v: f32) -> f32 {
    return v;
}

fn lanes_sum(v: vec4<f32>) -> vec4<f32> {
    return v;
}
