// Penalties and bias (zllm.sampling.penalise), kept for the draw.
@group(0) @binding(3) var<storage, read> counts: array<i32>; // [lanes, V]: 2 × generated + seen
@group(0) @binding(4) var<storage, read> bias: array<f32>; // [lanes, V]
@group(0) @binding(5) var<storage, read_write> scores: array<f32>; // [B, V]

override REPETITION: u32; // offsets of step words
override FREQUENCY: u32;
override PRESENCE: u32;

fn adjust(seq: u32, token: u32, value: f32) -> f32 {
    let at = lane_of(seq) * VOCABULARY + token;
    let flags = step[FLAGS + seq];
    var y = value;
    if ((flags & 1) != 0) {
        let count = counts[at];
        if ((count & 1) != 0) {
            let repetition = bitcast<f32>(step[REPETITION + seq]);
            y = select(y * repetition, y / repetition, y > 0.0);
        }
        let generated = count >> 1u;
        y -= bitcast<f32>(step[FREQUENCY + seq]) * f32(generated);
        y -= select(0.0, bitcast<f32>(step[PRESENCE + seq]), generated > 0);
    }
    if ((flags & 2) != 0) {
        y += bias[at];
    }
    scores[seq * VOCABULARY + token] = y;
    return y;
}
