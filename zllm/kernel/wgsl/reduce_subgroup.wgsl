// Reductions over a workgroup of THREADS by subgroups; every lane gets the answer.
override THREADS: u32;

var<workgroup> partial: array<vec4<f32>, 256>; // one a subgroup

@compute @workgroup_size(THREADS)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
    @builtin(subgroup_size) size: u32,
) {
    run(group, groups, lane, size);
}

fn reduce_sum(v: vec4<f32>, lane: u32, size: u32) -> vec4<f32> {
    partial[lane / size] = subgroupAdd(v);
    workgroupBarrier();
    var total = partial[0];
    for (var i = 1u; i < THREADS / size; i++) {
        total += partial[i];
    }
    workgroupBarrier();
    return total;
}

fn reduce_max(v: f32, lane: u32, size: u32) -> f32 {
    partial[lane / size] = vec4<f32>(subgroupMax(v));
    workgroupBarrier();
    var peak = partial[0].x;
    for (var i = 1u; i < THREADS / size; i++) {
        peak = max(peak, partial[i].x);
    }
    workgroupBarrier();
    return peak;
}
