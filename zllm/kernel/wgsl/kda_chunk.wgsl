// The gated delta rule 16 tokens at a time (zllm.attention.kda.chunked), first part: whatever does
// not depend on the state, M. A workgroup owns a chunk of one head. With T the inverse of I + A,
// U0 = T β V, W = T β (K e^G) and P the decayed products of q and k, a chunk writes U = U0 - W M,
// and reads P U + (q e^G) M = P U0 + (q e^G - P W) M. P U0 goes to `out`; for each channel `parts`
// has the 16 tokens of W, of q e^G - P W, of k e^(G_last - G) and of U0, and for each four channels
// e^G_last.
//
// Logarithms of decays are summed as sixteenths, without rounding, and a small rest, so that the
// decay between two tokens is right however strong those before are. No exponent is above 0.
@group(0) @binding(6) var<storage, read_write> parts: array<vec4<f32>>;
@group(0) @binding(7) var<storage, read_write> out: array<f32>;

override FIRST_HEAD: u32;

const LEAST = -110.0; // e to this is 0
const ROW = 33u; // of 32 channels of a token, and one that sets banks apart

// No two threads write components of one vector: a store may write the others as well.
// Of a token's channel: key, query, and in two parts the logarithm of its decay since the chunk
// began.
var<workgroup> staged: array<vec4<f32>, 528>;
var<workgroup> scales: array<vec3<f32>, 16>; // of a token: write gate, key, query
var<workgroup> pairs: array<vec2<f32>, 256>; // A and P: of tokens i and j
var<workgroup> lasts: array<f32, 128>; // decay of a channel over the whole chunk
var<workgroup> overlap: array<vec4<f32>, 64>; // A: of token j, and tokens 4a to 4a + 3
var<workgroup> products: array<vec4<f32>, 64>; // P
var<workgroup> factors: array<mat4x4<f32>, 4>; // of tokens 4a to 4a + 3: columns as in `scales`

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let seq = seq_of(group.x);
    let first = u32(step[FIRST_ROW + seq]) + 16u * (group.x - slot_of(seq));
    let last = u32(step[LAST_ROW + seq]);
    if (first > last) {
        return;
    }
    let head = FIRST_HEAD + group.y;
    let channel = lane % 128u;
    let of_keys = lane < 128u; // the others have values
    let at = head * SIZE + min(channel, SIZE - 1u);
    var own = mat4x4<f32>(); // 16 tokens
    var query = mat4x4<f32>();
    var whole = mat4x4<f32>();
    var rest = mat4x4<f32>();
    if (of_keys) {
        var sum = vec2<f32>();
        // unroll t 16
        {
            let row = min(first + $tu, last);
            let real = channel < SIZE && first + $tu <= last;
            own[$t / 4][$t % 4] = select(0.0, k[K_OFFSET + row * K_STRIDE + at], real);
            query[$t / 4][$t % 4] = select(0.0, q[Q_OFFSET + row * Q_STRIDE + at], real);
            let decay = select(0.0, max(g[G_OFFSET + row * G_STRIDE + at], LEAST), real);
            let sixteenths = round(decay * 16.0) / 16.0;
            sum += vec2<f32>(sixteenths, decay - sixteenths);
            whole[$t / 4][$t % 4] = sum.x;
            rest[$t / 4][$t % 4] = sum.y;
        }
        // end
    } else {
        // unroll t 16
        {
            let row = min(first + $tu, last);
            let real = channel < SIZE && first + $tu <= last;
            own[$t / 4][$t % 4] = select(0.0, v[V_OFFSET + row * V_STRIDE + at], real);
        }
        // end
    }

    // Thread 16 i + j: k_i and q_i by k_j as decayed from j to i.
    let i = lane / 16u;
    let j = lane % 16u;
    var sums = vec3<f32>();
    for (var begin = 0u; begin < PADDED; begin += 32u) {
        workgroupBarrier();
        if (of_keys && channel / 32u == begin / 32u) {
            // unroll t 16
            staged[$tu * ROW + channel % 32u] = vec4<f32>(
                own[$t / 4][$t % 4], query[$t / 4][$t % 4],
                whole[$t / 4][$t % 4], rest[$t / 4][$t % 4],
            );
            // end
        }
        workgroupBarrier();
        if (j <= i) {
            for (var c = 0u; c < 32u; c += 4u) {
                // unroll k 4
                {
                    let early = staged[j * ROW + c + $ku];
                    let late = staged[i * ROW + c + $ku];
                    let span = (late.z - early.z) + (late.w - early.w);
                    let decayed = early.x * exp(min(span, 0.0));
                    sums += vec3<f32>(late.x * decayed, late.y * decayed, late.y * late.y);
                }
                // end
            }
        }
    }
    if (i == j) {
        let gate = logistic(beta[BETA_OFFSET + min(first + i, last) * BETA_STRIDE + head]);
        scales[i] = vec3<f32>(
            select(0.0, gate, first + i <= last),
            1.0 / sqrt(sums.x + NORM_EPS),
            SCALE / sqrt(sums.z + NORM_EPS),
        );
    }
    if (of_keys) {
        lasts[channel] = exp(whole[3].w + rest[3].w);
    }
    workgroupBarrier();
    let late = scales[i];
    let early = scales[j].y;
    pairs[lane] = vec2<f32>(
        select(0.0, late.x * late.y * early * sums.x, j < i), late.z * early * sums.y
    );
    if (lane < 4u) {
        let of_tokens = mat4x3<f32>(
            scales[4u * lane], scales[4u * lane + 1u],
            scales[4u * lane + 2u], scales[4u * lane + 3u],
        );
        let turned = transpose(of_tokens);
        factors[lane] = mat4x4<f32>(turned[0], turned[1], turned[2], vec4<f32>());
    }
    workgroupBarrier();
    if (lane < 64u) {
        let at = 64u * (lane / 16u) + lane % 16u;
        let of_tokens = mat4x2<f32>(pairs[at], pairs[at + 16u], pairs[at + 32u], pairs[at + 48u]);
        let turned = transpose(of_tokens);
        overlap[4u * (lane % 16u) + lane / 16u] = turned[0];
        products[4u * (lane % 16u) + lane / 16u] = turned[1];
    }
    workgroupBarrier();

    if (channel >= PADDED) {
        return;
    }
    // A thread solves for its channel; token j is known when those before it are taken away.
    var solved = mat4x4<f32>();
    var taken = mat4x4<f32>();
    // unroll a 4
    solved[$a] = factors[$a][0] * own[$a];
    if (of_keys) {
        solved[$a] *= factors[$a][1] * exp(whole[$a] + rest[$a]);
    }
    // end
    // unroll j 16
    {
        let one = solved[$j / 4][$j % 4];
        // unroll a 4
        solved[$a] -= overlap[4 * $j + $a] * one;
        taken[$a] += products[4 * $j + $a] * one;
        // end
    }
    // end
    let begin = part_of(group.x, group.y, groups.y);
    let to = begin + 16u * channel;
    if (of_keys) {
        let total = vec2<f32>(whole[3].w, rest[3].w);
        // unroll a 4
        parts[to + $au] = solved[$a];
        parts[to + 4u + $au] = query[$a] * factors[$a][2] * exp(whole[$a] + rest[$a]) - taken[$a];
        let span$a = (total.x - whole[$a]) + (total.y - rest[$a]);
        parts[to + 8u + $au] = own[$a] * factors[$a][1] * exp(min(span$a, vec4<f32>()));
        // end
        return;
    }
    // unroll a 4
    parts[to + 12u + $au] = solved[$a];
    // end
    if (4u * channel < PADDED) {
        let c = 4u * channel;
        parts[begin + 16u * PADDED + channel] =
            vec4<f32>(lasts[c], lasts[c + 1u], lasts[c + 2u], lasts[c + 3u]);
    }
    if (channel < SIZE) {
        // unroll t 16
        if (first + $tu <= last) {
            out[OUT_OFFSET + (first + $tu) * OUT_STRIDE + at] = taken[$t / 4][$t % 4];
        }
        // end
    }
}

// The sequence whose chunks a slot is among: the last that begins at or before it.
fn seq_of(slot: u32) -> u32 {
    var low = 0u;
    var high = max(u32(step[VALID_SEQS]), 1u) - 1u;
    while (low < high) {
        let middle = (low + high + 1u) / 2u;
        if (slot_of(middle) <= slot) {
            low = middle;
        } else {
            high = middle - 1u;
        }
    }
    return low;
}
