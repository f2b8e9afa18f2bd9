// Joins what the splits of attend_compressed_tile left for each query.
@group(0) @binding(0) var<storage, read> parts: array<vec4<f32>>; // (maximum, total), then sums
@group(0) @binding(1) var<storage, read> step: array<i32>;
@group(0) @binding(2) var<storage, read_write> out: array<vec4<f32>>;

override HEADS: u32;
override QUADS: u32;
override SPLITS: u32;
override VALID_ROWS: u32; // offset of a step word
override OUT_OFFSET: u32;
override OUT_STRIDE: u32;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let count = u32(step[VALID_ROWS]) * HEADS * QUADS;
    for (var i = id.x; i < count; i += 64u * groups.x) {
        let unit = i / QUADS;
        let quad = i % QUADS;
        let at = unit * SPLITS * (QUADS + 1u);
        var peak = parts[at].x;
        for (var s = 1u; s < SPLITS; s++) {
            peak = max(peak, parts[at + s * (QUADS + 1u)].x);
        }
        var total = 0.0;
        var sum = vec4<f32>();
        for (var s = 0u; s < SPLITS; s++) {
            let origin = at + s * (QUADS + 1u);
            let kept = exp(parts[origin].x - peak);
            total += kept * parts[origin].y;
            sum += kept * parts[origin + 1u + quad];
        }
        let row = unit / HEADS;
        out[(OUT_OFFSET + row * OUT_STRIDE) / 4u + (unit % HEADS) * QUADS + quad] = sum / total;
    }
}
