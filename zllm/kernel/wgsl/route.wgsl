// The experts that a row meets, and their weights (zllm.moe.routing). One workgroup a row.
// A row of results: CHOSEN ids in ascending order and, elsewhere in it, CHOSEN weights.
@group(0) @binding(0) var<storage, read> logits: array<f32>;
@group(0) @binding(1) var<storage, read> aside: array<f32>; // bias of the choice, or a table of it
@group(0) @binding(2) var<storage, read_write> out: array<u32>; // i32 ids; f32 weights as bits

override ROWS: u32;
override EXPERTS: u32; // at most MOST
override CHOSEN: u32;
override SCORE: u32; // 0: softmax, 1: sigmoid, 2: sqrt_softplus, 3: softmax_of_chosen
override NORMALISE: bool;
override SCALE: f32;
override LOGITS_OFFSET: u32;
override LOGITS_STRIDE: u32;
override IDS_OFFSET: u32;
override IDS_STRIDE: u32;
override WEIGHTS_OFFSET: u32;
override WEIGHTS_STRIDE: u32;

const MOST: u32 = 1024u;
const NOBODY: u32 = 0xffffffffu;
const LOWEST: f32 = -0x1.fffffep+127;

var<workgroup> picked: array<u32, MOST>; // the chosen ones, in any order

fn run(group: vec3<u32>, groups: vec3<u32>, lane: u32, size: u32) {
    for (var row = group.x; row < ROWS; row += groups.x) {
        route(row, lane, size);
        workgroupBarrier();
    }
}

fn route(row: u32, lane: u32, size: u32) {
    let start = LOGITS_OFFSET + row * LOGITS_STRIDE;
    var softmax = vec2<f32>(0.0, 1.0); // the largest logit, the sum of powers
    if (SCORE == 0u) {
        softmax.x = reduce_max(largest(start, lane), lane, size);
        var powers = 0.0;
        for (var i = lane; i < EXPERTS; i += THREADS) {
            powers += exp(logits[start + i] - softmax.x);
        }
        softmax.y = reduce_sum(vec4<f32>(powers), lane, size).x;
    }
    for (var i = lane; i < CHOSEN; i += THREADS) {
        picked[i] = NOBODY;
    }
    workgroupBarrier();
    choose(row, start, softmax, lane);
    workgroupBarrier();
    var peak = 0.0;
    if (SCORE == 3u) {
        peak = reduce_max(largest_picked(start, lane), lane, size);
    }
    var sum = vec2<f32>(); // of the weights, and how many there are
    for (var i = lane; i < CHOSEN; i += THREADS) {
        if (picked[i] != NOBODY) {
            sum += vec2<f32>(weight(logits[start + picked[i]], softmax, peak), 1.0);
        }
    }
    sum = reduce_sum(vec4<f32>(sum, 0.0, 0.0), lane, size).xy;
    for (var i = lane; i < CHOSEN; i += THREADS) {
        if (picked[i] != NOBODY) {
            store(row, i, weight(logits[start + picked[i]], softmax, peak), sum.x);
        }
    }
    // A table may name fewer, and so may scores that are no numbers; what is left weighs nothing.
    for (var slot = u32(sum.y) + lane; slot < CHOSEN; slot += THREADS) {
        out[IDS_OFFSET + row * IDS_STRIDE + slot] = 0u;
        out[WEIGHTS_OFFSET + row * WEIGHTS_STRIDE + slot] = 0u;
    }
}

// Of the lane's own experts.
fn largest(start: u32, lane: u32) -> f32 {
    var peak = LOWEST;
    for (var i = lane; i < EXPERTS; i += THREADS) {
        peak = max(peak, logits[start + i]);
    }
    return peak;
}

fn largest_picked(start: u32, lane: u32) -> f32 {
    var peak = LOWEST;
    for (var i = lane; i < CHOSEN; i += THREADS) {
        if (picked[i] != NOBODY) {
            peak = max(peak, logits[start + picked[i]]);
        }
    }
    return peak;
}

fn score(logit: f32, softmax: vec2<f32>) -> f32 {
    switch (SCORE) {
        case 0u: {
            return exp(logit - softmax.x) / softmax.y;
        }
        case 1u: {
            return 1.0 / (1.0 + exp(-max(logit, -80.0)));
        }
        case 2u: {
            return sqrt(max(logit, 0.0) + log_one_plus(exp(-abs(logit))));
        }
        default: {
            return logit;
        }
    }
}

// log(1 + t) of t in [0, 1]. A sum with 1 would lose a small t.
fn log_one_plus(t: f32) -> f32 {
    let series = t * (1.0 - t * (0.5 - t * (1.0 / 3.0 - t * 0.25)));
    return select(log(1.0 + t), series, t < 0.01);
}

fn weight(logit: f32, softmax: vec2<f32>, peak: f32) -> f32 {
    if (SCORE == 3u) {
        return exp(logit - peak);
    }
    return score(logit, softmax);
}

// The i-th picked expert goes behind those of lower numbers.
fn store(row: u32, i: u32, weight: f32, sum: f32) {
    let expert = picked[i];
    var slot = 0u;
    for (var j = 0u; j < CHOSEN; j++) {
        slot += select(0u, 1u, picked[j] < expert || (picked[j] == expert && j < i));
    }
    var w = weight;
    if (SCORE == 3u) {
        w /= sum; // now their sum is 1
    } else if (NORMALISE) {
        w /= sum + 1e-20;
    }
    out[IDS_OFFSET + row * IDS_STRIDE + slot] = expert;
    out[WEIGHTS_OFFSET + row * WEIGHTS_STRIDE + slot] = bitcast<u32>(w * SCALE);
}
