// Copies a buffer: what a benchmark takes as the bandwidth that kernels can have.
@group(0) @binding(0) var<storage, read> original: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read_write> copied: array<vec4<u32>>;

@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    for (var i = id.x; i < arrayLength(&original); i += 256u * groups.x) {
        copied[i] = original[i];
    }
}
