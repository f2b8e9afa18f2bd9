// The experts of the largest biased scores; of equals the lower ones. With GROUPS only experts of
// the best KEPT_GROUPS runs can be chosen; a run's score is the sum of its two best.
override GROUPS: u32;
override KEPT_GROUPS: u32;
override HAS_BIAS: bool;

const MOST_GROUPS: u32 = 256u;

var<workgroup> biased: array<f32, MOST>;
var<workgroup> group_scores: array<f32, MOST_GROUPS>;

fn choose(row: u32, start: u32, softmax: vec2<f32>, lane: u32) {
    for (var i = lane; i < EXPERTS; i += THREADS) {
        var s = score(logits[start + i], softmax);
        if (HAS_BIAS) {
            s += aside[i];
        }
        biased[i] = s;
    }
    workgroupBarrier();
    if (GROUPS > 1u) {
        drop_groups(lane);
    }
    for (var i = lane; i < EXPERTS; i += 4u * THREADS) {
        pick(vec4<u32>(i) + THREADS * vec4<u32>(0u, 1u, 2u, 3u));
    }
}

// Those of four experts that fewer than CHOSEN others come before.
fn pick(experts: vec4<u32>) {
    let at = min(experts, vec4<u32>(EXPERTS - 1u));
    let own = vec4<f32>(biased[at.x], biased[at.y], biased[at.z], biased[at.w]);
    var before = vec4<u32>();
    for (var i = 0u; i < EXPERTS; i++) {
        let other = vec4<f32>(biased[i]);
        let lower = vec4<u32>(i) < experts;
        before += select(vec4<u32>(), vec4<u32>(1u), (other > own) | ((other == own) & lower));
    }
    for (var i = 0u; i < 4u; i++) {
        if (experts[i] < EXPERTS && before[i] < CHOSEN) {
            picked[before[i]] = experts[i];
        }
    }
}

fn drop_groups(lane: u32) {
    let size = EXPERTS / GROUPS;
    for (var g = lane; g < GROUPS; g += THREADS) {
        var best = vec2<f32>(LOWEST);
        for (var i = g * size; i < (g + 1u) * size; i++) {
            let s = biased[i];
            best = select(vec2<f32>(best.x, max(best.y, s)), vec2<f32>(s, best.x), s > best.x);
        }
        group_scores[g] = best.x + select(0.0, best.y, size > 1u);
    }
    workgroupBarrier();
    for (var i = lane; i < EXPERTS; i += THREADS) {
        if (group_rank(i / size) >= KEPT_GROUPS) {
            biased[i] = LOWEST;
        }
    }
    workgroupBarrier();
}

fn group_rank(group: u32) -> u32 {
    let s = group_scores[group];
    var before = 0u;
    for (var g = 0u; g < GROUPS; g++) {
        before += select(0u, 1u, group_scores[g] > s || (group_scores[g] == s && g < group));
    }
    return before;
}
