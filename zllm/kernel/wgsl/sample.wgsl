// What every kernel of the sampler shares: the logits and where the step words are.
@group(0) @binding(0) var<storage, read> logits: array<f32>;
@group(0) @binding(1) var<storage, read> step: array<i32>;

override VOCABULARY: u32;
override X_OFFSET: u32;
override X_STRIDE: u32;
override CANDIDATES: u32; // runs of the vocabulary: run i owns tokens i, i + CANDIDATES, …
override VALID_SEQS: u32; // offsets of step words
override LANE: u32;
override FLAGS: u32;

const LOWEST: f32 = -3.4e38;
const NONE: u32 = 0xffffffffu;

// What the first pass finds in a candidate run.
struct Run {
    best: vec2<u32>, // largest logit (bits) and its token
    adjusted: vec2<u32>, // the same after penalties and bias
    sum: f32, // of e^(logit - best)
    flags: u32,
}

fn logit(seq: u32, token: u32) -> f32 {
    return logits[X_OFFSET + seq * X_STRIDE + token];
}

fn lane_of(seq: u32) -> u32 {
    return u32(step[LANE + seq]);
}

// Less likely than any token.
fn nobody() -> vec2<u32> {
    return vec2<u32>(bitcast<u32>(LOWEST), NONE);
}

// (value, token) as bits; the likelier of two, ties to the lower token.
fn likelier(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let x = bitcast<f32>(a.x);
    let y = bitcast<f32>(b.x);
    return select(a, b, y > x || (y == x && b.y < a.y));
}

// log x of a normal x > 0 to an ulp (Cephes logf), so that every device draws alike; the builtin
// may be wrong by 2^-21.
fn ln(x: f32) -> f32 {
    let bits = bitcast<u32>(x);
    var exponent = f32(bits >> 23u) - 126.0;
    var m = bitcast<f32>((bits & 0x7fffffu) | 0x3f000000u); // [½, 1)
    if (m < 0.70710678) {
        exponent -= 1.0;
        m += m;
    }
    m -= 1.0;
    let square = m * m;
    var y = 7.0376836292e-2 * m - 1.1514610310e-1;
    y = y * m + 1.1676998740e-1;
    y = y * m - 1.2420140846e-1;
    y = y * m + 1.4249322787e-1;
    y = y * m - 1.6668057665e-1;
    y = y * m + 2.0000714765e-1;
    y = y * m - 2.4999993993e-1;
    y = y * m + 3.3333331174e-1;
    y = y * m * square - 2.12194440e-4 * exponent - 0.5 * square;
    return m + y + 0.693359375 * exponent;
}
