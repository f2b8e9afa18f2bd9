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
    for (var i = lane; i < EXPERTS; i += THREADS) {
        var named = 0u;
        for (var slot = 0u; slot < CHOSEN; slot++) {
            named |= select(0u, 1u, aside[u32(token) * CHOSEN + slot] == f32(i));
        }
        chosen[i] = select(0u, named, u32(token) < TOKENS);
    }
}
