// The experts that a table [V, CHOSEN] names for the row's token; those that do not exist are left
// out.
@group(0) @binding(3) var<storage, read> step: array<i32>;
@group(0) @binding(4) var<storage, read> carry_token: array<i32>;

override TOKEN: u32; // offsets of step words
override SEQ: u32;
override LANE: u32;
override TOKENS: u32; // V

fn choose(row: u32, start: u32, softmax: vec2<f32>, lane: u32) {
    var token = step[TOKEN + row];
    if (token < 0) {
        token = carry_token[step[LANE + u32(step[SEQ + row])]];
    }
    for (var i = lane; i < CHOSEN && u32(token) < TOKENS; i += THREADS) {
        let named = aside[u32(token) * CHOSEN + i];
        if (named >= 0.0 && named < f32(EXPERTS)) {
            picked[i] = u32(named);
        }
    }
}
