// Causal convolution of each channel with TAPS taps, then SiLU. A thread owns a row and a channel.
// Inputs before a sequence's rows are in the plane it reads [TAPS - 1, CHANNELS]; the thread of its
// last row leaves those of the next round in the plane it writes.
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> w: array<f32>; // [CHANNELS, TAPS]
@group(0) @binding(2) var<storage, read> step: array<i32>;
@group(0) @binding(3) var<storage, read_write> planes: array<f32>;
@group(0) @binding(4) var<storage, read_write> out: array<f32>;

override CHANNELS: u32;
override TAPS: u32;
override W_STRIDE: u32;
override X_OFFSET: u32;
override X_STRIDE: u32;
override OUT_OFFSET: u32;
override OUT_STRIDE: u32;
override VALID_ROWS: u32;
override SEQ: u32;
override POSITION: u32;
override FIRST_ROW: u32;
override LAST_ROW: u32;
override READ_PLANE: u32;
override WRITTEN_PLANE: u32;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let channel = id.x;
    if (channel >= CHANNELS) {
        return;
    }
    for (var row = id.y; row < u32(step[VALID_ROWS]); row += groups.y) {
        let seq = u32(step[SEQ + row]);
        let first = u32(step[FIRST_ROW + seq]);
        var sum = 0.0;
        for (var back = 0u; back < TAPS; back++) {
            sum += w[channel * W_STRIDE + TAPS - 1u - back] * input(seq, first, row, back, channel);
        }
        out[OUT_OFFSET + row * OUT_STRIDE + channel] = silu(sum);
        if (row == u32(step[LAST_ROW + seq])) {
            let to = u32(step[WRITTEN_PLANE + seq]) * (TAPS - 1u) * CHANNELS + channel;
            for (var back = 0u; back + 1u < TAPS; back++) {
                planes[to + (TAPS - 2u - back) * CHANNELS] = input(seq, first, row, back, channel);
            }
        }
    }
}

// What stood `back` tokens before a row; nothing before position 0.
fn input(seq: u32, first: u32, row: u32, back: u32, channel: u32) -> f32 {
    if (first + back <= row) {
        return x[X_OFFSET + (row - back) * X_STRIDE + channel];
    }
    if (step[POSITION + first] == 0) {
        return 0.0;
    }
    let kept = TAPS - 1u + (row - first) - back;
    return planes[(u32(step[READ_PLANE + seq]) * (TAPS - 1u) + kept) * CHANNELS + channel];
}
