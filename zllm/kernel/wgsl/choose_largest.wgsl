// The experts of the largest biased scores; of equals the lower ones. With GROUPS only experts of
// the best KEPT_GROUPS runs can be chosen; a run's score is the sum of its two best.
override GROUPS: u32;
override KEPT_GROUPS: u32;
override HAS_BIAS: bool;

const MOST_GROUPS: u32 = 256u;

var<workgroup> biased: array<vec4<f32>, MOST / 4u>; // whole blocks of 16; LOWEST beyond the end
var<workgroup> group_scores: array<f32, MOST_GROUPS>;

fn choose(row: u32, start: u32, softmax: vec2<f32>, lane: u32) {
    for (var i = lane; i < (EXPERTS + 15u) / 16u * 16u; i += THREADS) {
        var s = LOWEST;
        if (i < EXPERTS) {
            s = score(logits[start + i], softmax);
            if (HAS_BIAS) {
                s += aside[i];
            }
        }
        biased[i / 4u][i % 4u] = s;
    }
    workgroupBarrier();
    if (GROUPS > 1u) {
        drop_groups(lane);
    }
    for (var i = lane; i < EXPERTS; i += THREADS) {
        pick(i, biased[i / 4u][i % 4u]);
    }
}

// An expert that fewer than CHOSEN others come before.
fn pick(expert: u32, own: f32) {
    var before = vec4<u32>();
    for (var i = 0u; i < EXPERTS; i += 16u) {
        // Four loads on their way at once.
        let a = biased[i / 4u];
        let b = biased[i / 4u + 1u];
        let c = biased[i / 4u + 2u];
        let d = biased[i / 4u + 3u];
        before += comes_before(a, i, expert, own) + comes_before(b, i + 4u, expert, own)
            + comes_before(c, i + 8u, expert, own) + comes_before(d, i + 12u, expert, own);
    }
    let rank = before.x + before.y + before.z + before.w;
    if (rank < CHOSEN) {
        picked[rank] = expert;
    }
}

// 1 for each of the scores of experts `first` to `first` + 3 that beats the expert's own.
fn comes_before(scores: vec4<f32>, first: u32, expert: u32, own: f32) -> vec4<u32> {
    let others = vec4<u32>(first) + vec4<u32>(0u, 1u, 2u, 3u);
    let beats = (scores > vec4<f32>(own)) & (others < vec4<u32>(EXPERTS));
    let equal = (scores == vec4<f32>(own)) & (others < vec4<u32>(expert));
    return select(vec4<u32>(), vec4<u32>(1u), beats | equal);
}

fn drop_groups(lane: u32) {
    let size = EXPERTS / GROUPS;
    for (var g = lane; g < GROUPS; g += THREADS) {
        var best = vec2<f32>(LOWEST);
        for (var i = g * size; i < (g + 1u) * size; i++) {
            let s = biased[i / 4u][i % 4u];
            best = select(vec2<f32>(best.x, max(best.y, s)), vec2<f32>(s, best.x), s > best.x);
        }
        group_scores[g] = best.x + select(0.0, best.y, size > 1u);
    }
    workgroupBarrier();
    for (var i = lane; i < EXPERTS; i += THREADS) {
        if (group_rank(i / size) >= KEPT_GROUPS) {
            biased[i / 4u][i % 4u] = LOWEST;
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
