// Causal convolution of each channel with TAPS taps, then SiLU. A thread owns RUN rows of a channel
// and takes its inputs along. Those before a sequence's rows are in the plane it reads
// [KEPT, CHANNELS]; the thread of its last row leaves those of the next round in the plane it
// writes.
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> w: array<f32>; // [CHANNELS, TAPS]
@group(0) @binding(2) var<storage, read> step: array<i32>;
@group(0) @binding(3) var<storage, read_write> planes: array<f32>;
@group(0) @binding(4) var<storage, read_write> out: array<f32>;

override CHANNELS: u32;
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
    // unroll b TAPS
    let w$b = w[channel * W_STRIDE + $bu];
    // end
    let valid = u32(step[VALID_ROWS]);
    for (var first = id.y * RUN; first < valid; first += groups.y * RUN) {
        // unroll r RUN
        let x$r = x[X_OFFSET + min(first + $ru, valid - 1u) * X_STRIDE + channel];
        // end
        var inputs: array<f32, TAPS>; // the last is the row's own
        // unroll b KEPT
        inputs[$b] = input(first, KEPT - $bu, channel);
        // end
        // unroll r RUN
        {
            let row = first + $ru;
            if (row < valid) {
                let seq = u32(step[SEQ + row]);
                if ($ru > 0u && row == u32(step[FIRST_ROW + seq])) {
                    // unroll b KEPT
                    inputs[$b] = held(seq, row, $bu, channel);
                    // end
                }
                inputs[KEPT] = x$r;
                var sum = 0.0;
                // unroll b TAPS
                sum += w$b * inputs[$b];
                // end
                out[OUT_OFFSET + row * OUT_STRIDE + channel] = silu(sum);
                // unroll b KEPT
                inputs[$b] = inputs[$b + 1];
                // end
                if (row == u32(step[LAST_ROW + seq])) {
                    let to = u32(step[WRITTEN_PLANE + seq]) * KEPT * CHANNELS + channel;
                    // unroll b KEPT
                    planes[to + $bu * CHANNELS] = inputs[$b];
                    // end
                }
            }
        }
        // end
    }
}

// What stood `back` tokens before a row.
fn input(row: u32, back: u32, channel: u32) -> f32 {
    let seq = u32(step[SEQ + row]);
    let first = u32(step[FIRST_ROW + seq]);
    if (first + back <= row) {
        return x[X_OFFSET + (row - back) * X_STRIDE + channel];
    }
    return held(seq, first, KEPT + (row - first) - back, channel);
}

// A sequence's input from before its first row; nothing before position 0.
fn held(seq: u32, first: u32, place: u32, channel: u32) -> f32 {
    let plane = u32(step[READ_PLANE + seq]);
    let kept = planes[(plane * KEPT + place) * CHANNELS + channel];
    return select(kept, 0.0, step[POSITION + first] == 0);
}
