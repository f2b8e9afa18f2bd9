// Threads that know their place in a subgroup.
override THREADS: u32;

var<private> lane: u32;

@compute @workgroup_size(THREADS)
fn main(
    @builtin(global_invocation_id) id: vec3<u32>, @builtin(subgroup_invocation_id) own_lane: u32
) {
    lane = own_lane;
    product(id);
}
