// The gated delta rule 16 tokens at a time (zllm.attention.kda.chunked), first part: whatever does
// not depend on the state, M. A workgroup owns a chunk of one head. With T the inverse of I + A,
// U0 = T β V, W = T β (K e^G) and P the decayed products of q and k, a chunk writes U = U0 - W M,
// and reads P U + (q e^G) M = P U0 + (q e^G - P W) M. P U0 goes to `out`; for each channel `parts`
// has the 16 tokens of W, of q e^G - P W, of k e^(G_last - G) and of U0, and for each four channels
// e^G_last.
//
// Logarithms of decays are summed as sixteenths, without rounding, and a small rest, so that the
// decay between two tokens is right however strong those before are. No exponent is above 0.
@group(0) @binding(0) var<storage, read> q: array<f32>;
@group(0) @binding(1) var<storage, read> k: array<f32>;
@group(0) @binding(2) var<storage, read> v: array<f32>;
@group(0) @binding(3) var<storage, read> g: array<f32>;
@group(0) @binding(4) var<storage, read> beta: array<f32>;
@group(0) @binding(5) var<storage, read> step: array<i32>;
@group(0) @binding(6) var<storage, read_write> parts: array<vec4<f32>>;
@group(0) @binding(7) var<storage, read_write> out: array<f32>;

override FIRST_HEAD: u32;
override SIZE: u32;
override SCALE: f32; // of q
override Q_OFFSET: u32;
override Q_STRIDE: u32;
override K_OFFSET: u32;
override K_STRIDE: u32;
override V_OFFSET: u32;
override V_STRIDE: u32;
override G_OFFSET: u32;
override G_STRIDE: u32;
override BETA_OFFSET: u32;
override BETA_STRIDE: u32;

const NORM_EPS = 1e-6; // flash-linear-attention, fla/modules/l2norm.py
const LEAST = -110.0; // e to this is 0
const ROW = 9u; // of 32 channels of a token, and one that sets banks apart

var<workgroup> keys: array<vec4<f32>, 144>;
var<workgroup> queries: array<vec4<f32>, 144>;
var<workgroup> coarse: array<vec4<f32>, 144>; // logarithms of decays since the chunk began
var<workgroup> fine: array<vec4<f32>, 144>;
var<workgroup> overlap: array<vec4<f32>, 64>; // A: of token j, and tokens 4a to 4a + 3
var<workgroup> products: array<vec4<f32>, 64>; // P
var<workgroup> write_gates: array<vec4<f32>, 4>;
var<workgroup> key_scales: array<vec4<f32>, 4>;
var<workgroup> query_scales: array<vec4<f32>, 4>;

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
            let quad = (channel % 32u) / 4u;
            let part = channel % 4u;
            // unroll t 16
            keys[$tu * ROW + quad][part] = own[$t / 4][$t % 4];
            queries[$tu * ROW + quad][part] = query[$t / 4][$t % 4];
            coarse[$tu * ROW + quad][part] = whole[$t / 4][$t % 4];
            fine[$tu * ROW + quad][part] = rest[$t / 4][$t % 4];
            // end
        }
        workgroupBarrier();
        if (j <= i) {
            for (var c = 0u; c < 8u; c++) {
                let early = j * ROW + c;
                let late = i * ROW + c;
                let span = (coarse[late] - coarse[early]) + (fine[late] - fine[early]);
                let decayed = keys[early] * exp(min(span, vec4<f32>()));
                let query_late = queries[late];
                sums += vec3<f32>(
                    dot(keys[late], decayed),
                    dot(query_late, decayed),
                    dot(query_late, query_late),
                );
            }
        }
    }
    if (i == j) {
        key_scales[i / 4u][i % 4u] = 1.0 / sqrt(sums.x + NORM_EPS);
        query_scales[i / 4u][i % 4u] = SCALE / sqrt(sums.z + NORM_EPS);
        let gate = logistic(beta[BETA_OFFSET + min(first + i, last) * BETA_STRIDE + head]);
        write_gates[i / 4u][i % 4u] = select(0.0, gate, first + i <= last);
    }
    workgroupBarrier();
    let scale = key_scales[j / 4u][j % 4u];
    let write = write_gates[i / 4u][i % 4u] * key_scales[i / 4u][i % 4u] * scale * sums.x;
    overlap[4u * j + i / 4u][i % 4u] = select(0.0, write, j < i);
    products[4u * j + i / 4u][i % 4u] = query_scales[i / 4u][i % 4u] * scale * sums.y;
    workgroupBarrier();

    if (channel >= PADDED) {
        return;
    }
    // A thread solves for its channel; token j is known when those before it are taken away.
    var solved = mat4x4<f32>();
    var taken = mat4x4<f32>();
    // unroll a 4
    solved[$a] = write_gates[$a] * own[$a];
    if (of_keys) {
        solved[$a] *= key_scales[$a] * exp(whole[$a] + rest[$a]);
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
        parts[to + 4u + $au] = query[$a] * query_scales[$a] * exp(whole[$a] + rest[$a]) - taken[$a];
        let span$a = (total.x - whole[$a]) + (total.y - rest[$a]);
        parts[to + 8u + $au] = own[$a] * key_scales[$a] * exp(min(span$a, vec4<f32>()));
        // end
        parts[begin + 16u * PADDED + channel / 4u][channel % 4u] = exp(total.x + total.y);
        return;
    }
    // unroll a 4
    parts[to + 12u + $au] = solved[$a];
    // end
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
