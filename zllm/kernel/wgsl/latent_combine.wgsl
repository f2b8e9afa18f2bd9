// Joins what the splits of latent_attend left for each row and head.
@group(0) @binding(0) var<storage, read> parts: array<vec4<f32>>; // (maximum, total), then sums
@group(0) @binding(1) var<storage, read> step: array<i32>;
@group(0) @binding(2) var<storage, read_write> mixed: array<vec4<f32>>; // [TOKENS, H, RANK_QUADS]

override HEADS: u32;
override RANK_QUADS: u32;
override SPLITS: u32;
override FIRST_ROW: u32; // of the round, where these TOKENS rows begin
override TOKENS: u32;
override VALID_ROWS: u32; // offset of a step word

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let valid = max(u32(step[VALID_ROWS]), FIRST_ROW) - FIRST_ROW;
    let count = min(TOKENS, valid) * HEADS * RANK_QUADS;
    for (var i = id.x; i < count; i += 64u * groups.x) {
        let quad = i % RANK_QUADS;
        let at = i / RANK_QUADS * SPLITS * (RANK_QUADS + 1u);
        var peak = -3.0e38;
        var total = 0.0;
        var sum = vec4<f32>();
        // Eight splits at a time, as each load takes long.
        for (var s = 0u; s < SPLITS; s += 8u) {
            // unroll j 8
            let origin_$j = at + min(s + $ju, SPLITS - 1u) * (RANK_QUADS + 1u);
            let ends_$j = parts[origin_$j];
            let part_$j = parts[origin_$j + 1u + quad];
            // end
            var higher = peak;
            // unroll j 8
            higher = max(higher, ends_$j.x);
            // end
            let scale = exp(peak - higher);
            total *= scale;
            sum *= scale;
            peak = higher;
            // unroll j 8
            let kept_$j = select(0.0, exp(ends_$j.x - higher), s + $ju < SPLITS);
            total += kept_$j * ends_$j.y;
            sum += kept_$j * part_$j;
            // end
        }
        // A row that sees nothing gives zeros.
        mixed[i] = select(vec4<f32>(), sum / total, total > 0.0);
    }
}
