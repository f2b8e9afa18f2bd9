// Reductions over a workgroup of THREADS (a power of two) through workgroup memory; every lane gets
// the answer.
override THREADS: u32;

var<workgroup> partial: array<vec4<f32>, 256>;

@compute @workgroup_size(THREADS)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    run(group, groups, lane, 1u);
}

fn reduce_sum(v: vec4<f32>, lane: u32, size: u32) -> vec4<f32> {
    partial[lane] = v;
    for (var half = THREADS / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (lane < half) {
            partial[lane] += partial[lane + half];
        }
    }
    workgroupBarrier();
    let total = partial[0];
    workgroupBarrier();
    return total;
}

fn reduce_max(v: f32, lane: u32, size: u32) -> f32 {
    partial[lane].x = v;
    for (var half = THREADS / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (lane < half) {
            partial[lane].x = max(partial[lane].x, partial[lane + half].x);
        }
    }
    workgroupBarrier();
    let peak = partial[0].x;
    workgroupBarrier();
    return peak;
}
