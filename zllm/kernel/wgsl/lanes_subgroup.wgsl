// A workgroup is one subgroup and works on one unit.
override THREADS: u32;

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    attend(group.x + 65535u * group.y, lane, THREADS);
}

fn lanes_max(v: f32) -> f32 {
    return subgroupMax(v);
}

fn lanes_sum(v: vec4<f32>) -> vec4<f32> {
    return subgroupAdd(v);
}
