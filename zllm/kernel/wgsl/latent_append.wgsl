// Writes [latent | rotated key] of each row to its slot.
@group(0) @binding(0) var<storage, read> latent: array<f32>;
@group(0) @binding(1) var<storage, read> rotated: array<f32>;
@group(0) @binding(2) var<storage, read> step: array<i32>;
@group(0) @binding(3) var<storage, read_write> latents: array<f32>; // [slots, RANK + TURNED]

override RANK: u32;
override TURNED: u32; // numbers of the rotated key
override ROW_SLOT: u32; // offsets of step words
override VALID_ROWS: u32;
override LATENT_OFFSET: u32;
override LATENT_STRIDE: u32;
override ROTATED_OFFSET: u32;
override ROTATED_STRIDE: u32;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let width = RANK + TURNED;
    let count = u32(step[VALID_ROWS]) * width;
    for (var i = id.x; i < count; i += 64u * groups.x) {
        let row = i / width;
        let column = i % width;
        let to = u32(step[ROW_SLOT + row]) * width + column;
        if (column < RANK) {
            latents[to] = latent[LATENT_OFFSET + row * LATENT_STRIDE + column];
        } else {
            latents[to] = rotated[ROTATED_OFFSET + row * ROTATED_STRIDE + column - RANK];
        }
    }
}
