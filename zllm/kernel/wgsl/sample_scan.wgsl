// First pass over the logits: what each candidate run holds.
@group(0) @binding(2) var<storage, read_write> runs: array<Run>;

override LOGPROBS: bool;

@compute @workgroup_size(32)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if (id.y >= u32(step[VALID_SEQS]) || id.x >= CANDIDATES) {
        return;
    }
    var run = Run(nobody(), nobody(), 0.0, 0u);
    for (var token = id.x; token < VOCABULARY; token += CANDIDATES) {
        let value = logit(id.y, token);
        // Infinities and NaNs by their exponent: compilers may assume that comparisons see none.
        if ((bitcast<u32>(value) & 0x7f800000u) == 0x7f800000u) {
            run.flags = 1u;
        }
        run.best = likelier(run.best, vec2<u32>(bitcast<u32>(value), token));
        let adjusted = adjust(id.y, token, value);
        run.adjusted = likelier(run.adjusted, vec2<u32>(bitcast<u32>(adjusted), token));
    }
    if (LOGPROBS) {
        let peak = bitcast<f32>(run.best.x);
        for (var token = id.x; token < VOCABULARY; token += CANDIDATES) {
            run.sum += exp(logit(id.y, token) - peak);
        }
    }
    runs[id.y * CANDIDATES + id.x] = run;
}
