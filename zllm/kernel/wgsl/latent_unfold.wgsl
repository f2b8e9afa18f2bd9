// What both shapes of unfolding share: V_h times the mixed latent of each row and head. V_h are the
// last VALUE of each NOPE + VALUE rows of the matrix; row t·H + h of x is the latent.
const NORM: bool = false;

@group(0) @binding(3) var<storage, read> step: array<i32>;
@group(0) @binding(4) var<storage, read_write> out: array<f32>;

override HEADS: u32;
override NOPE: u32;
override VALUE: u32;
override FIRST_ROW: u32; // of the round, where these TOKENS rows begin
override TOKENS: u32;
override VALID_ROWS: u32; // offset of a step word
override OUT_OFFSET: u32;
override OUT_STRIDE: u32;

fn valid(token: u32) -> bool {
    return FIRST_ROW + token < u32(step[VALID_ROWS]);
}

// Where row `row` of V_h begins; beyond the end, the last one.
fn value_start(head: u32, row: u32) -> u32 {
    return row_start(head * (NOPE + VALUE) + NOPE + min(row, VALUE - 1u));
}

fn x_row(token: u32, head: u32) -> u32 {
    return min(token, TOKENS - 1u) * HEADS + head;
}

fn store(token: u32, head: u32, row: u32, y: f32) {
    if (token < TOKENS && row < VALUE) {
        out[OUT_OFFSET + (FIRST_ROW + token) * OUT_STRIDE + head * VALUE + row] = y;
    }
}
