// Threads that know nothing of each other.
override THREADS: u32;

@compute @workgroup_size(THREADS)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    product(id);
}
