// The experts of the largest biased scores; of equals the lower ones. With GROUPS only experts of
// the best KEPT_GROUPS runs can be chosen; a run's score is the sum of its two best.
override GROUPS: u32;
override KEPT_GROUPS: u32;
override HAS_BIAS: bool;

const MOST_GROUPS: u32 = 256u;

var<workgroup> biased: array<vec4<f32>, MOST / 4u>; // whole blocks of 16; LOWEST beyond the end
var<workgroup> group_scores: array<f32, MOST_GROUPS>;
var<workgroup> group_ranks: array<u32, MOST_GROUPS>;

// A thread writes whole vectors: a store to one component may write the others as well.
fn choose(row: u32, start: u32, softmax: vec2<f32>, lane: u32) {
    for (var quad = lane; quad < (EXPERTS + 15u) / 16u * 4u; quad += THREADS) {
        // unroll k 4
        let s_$k = biased_score(4u * quad + $ku, start, softmax);
        // end
        biased[quad] = vec4<f32>(s_0, s_1, s_2, s_3);
    }
    workgroupBarrier();
    if (GROUPS > 1u) {
        drop_groups(lane);
    }
    for (var i = lane; i < EXPERTS; i += THREADS) {
        pick(i, biased[i / 4u][i % 4u]);
    }
}

fn biased_score(expert: u32, start: u32, softmax: vec2<f32>) -> f32 {
    let i = min(expert, EXPERTS - 1u);
    var s = score(logits[start + i], softmax);
    if (HAS_BIAS) {
        s += aside[i];
    }
    return select(LOWEST, s, expert < EXPERTS);
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
    for (var g = lane; g < GROUPS; g += THREADS) {
        group_ranks[g] = group_rank(g);
    }
    workgroupBarrier();
    for (var quad = lane; 4u * quad < EXPERTS; quad += THREADS) {
        let scores = biased[quad];
        // unroll k 4
        let rank_$k = group_ranks[min((4u * quad + $ku) / size, GROUPS - 1u)];
        // end
        let kept = vec4<u32>(rank_0, rank_1, rank_2, rank_3) < vec4<u32>(KEPT_GROUPS);
        biased[quad] = select(vec4<f32>(LOWEST), scores, kept);
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
