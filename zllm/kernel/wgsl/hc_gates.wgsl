// From the products of hc_product to what a sublayer reads of up to four streams, and how they go
// on: post gates, and a mix whose rows and columns are normalised in turn (Sinkhorn). The first
// workgroup of a row owns its gates and mix, if MIXES; every other THREADS · EACH columns: it needs
// the pre gates alone, and each thread computes them itself.
@group(0) @binding(0) var<storage, read> parts: array<vec4<f32>>; // [ROWS, SPLITS, QUADS + 1]
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read> base: array<f32>;
@group(0) @binding(3) var<storage, read> scale: array<f32>;
@group(0) @binding(4) var<storage, read_write> out: array<f32>;

override MIXES: bool;
override ROWS: u32;
override WIDTH: u32;
override OUTPUTS: u32;
override QUADS: u32;
override SPLITS: u32;
override ITERATIONS: u32;
override EPS: f32;
override NORM_EPS: f32;
override X_OFFSET: u32;
override X_STRIDE: u32;
override OUT_OFFSET: u32;
override OUT_STRIDE: u32;
override POST_OFFSET: u32;
override POST_STRIDE: u32;
override COMB_OFFSET: u32;
override COMB_STRIDE: u32;

const ONES = vec4<f32>(1.0);
const LOWEST: f32 = -3.0e38;

// Each dealer adds up DEALT splits. The quads, and last the squares.
var<workgroup> sums: array<array<vec4<f32>, DEALERS>, 8>;
var<workgroup> logits: array<f32, 32>; // of pre and post gates, then of the mix

@compute @workgroup_size(THREADS)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    for (var row = group.y; row < ROWS; row += groups.y) {
        if (MIXES && group.x == 0u) {
            mix(row, lane);
        } else {
            weigh(row, (group.x - u32(MIXES)) * THREADS * EACH + lane, lane);
        }
        workgroupBarrier();
    }
}

fn weigh(row: u32, column: u32, lane: u32) {
    // Asked for before the products are there.
    // unroll c EACH
    let column_$c = column + $cu * THREADS;
    // unroll j STREAMS
    let x_$c_$j = x[X_OFFSET + row * X_STRIDE + $ju * WIDTH + min(column_$c, WIDTH - 1u)];
    // end
    // end
    // unroll j STREAMS
    let base_$j = base[$j];
    // end
    let by = scale[0];
    // Quad 0 has the pre gates.
    for (var i = lane; i < 2u * DEALERS; i += THREADS) {
        sums[i / DEALERS][i % DEALERS] = dealt(row, i / DEALERS * QUADS, i % DEALERS);
    }
    workgroupBarrier();
    let factor = by / rms(1u);
    let products = total(0u);
    // unroll j STREAMS
    let pre_$j = logistic(products[$j] * factor + base_$j) + EPS;
    // end
    // unroll c EACH
    var sum_$c = 0.0;
    // unroll j STREAMS
    sum_$c += pre_$j * x_$c_$j;
    // end
    if (column_$c < WIDTH) {
        out[OUT_OFFSET + row * OUT_STRIDE + column_$c] = sum_$c;
    }
    // end
}

// What a dealer sums of quad `quad`.
fn dealt(row: u32, quad: u32, dealer: u32) -> vec4<f32> {
    var sum = vec4<f32>();
    let first = row * SPLITS;
    // unroll i DEALT
    let s_$i = dealer + $iu * DEALERS;
    let part_$i = parts[(first + min(s_$i, SPLITS - 1u)) * (QUADS + 1u) + quad];
    // end
    // unroll i DEALT
    sum += select(vec4<f32>(), part_$i, s_$i < SPLITS);
    // end
    return sum;
}

fn total(at: u32) -> vec4<f32> {
    var a = vec4<f32>();
    var b = vec4<f32>();
    // unroll i HALF
    a += sums[at][2 * $i];
    b += sums[at][2 * $i + 1];
    // end
    return a + b;
}

// Of all streams as one vector.
fn rms(at: u32) -> f32 {
    return sqrt(total(at).x / f32(STREAMS * WIDTH) + NORM_EPS);
}

fn mix(row: u32, lane: u32) {
    let output = min(lane, OUTPUTS - 1u); // no more than THREADS
    let shift = base[output];
    let by = scale[min(output / STREAMS, 2u)];
    for (var i = lane; i < (QUADS + 1u) * DEALERS; i += THREADS) {
        sums[i / DEALERS][i % DEALERS] = dealt(row, i / DEALERS, i % DEALERS);
    }
    workgroupBarrier();
    if (lane < OUTPUTS) {
        let logit = total(lane / 4u)[lane % 4u] * (by / rms(QUADS)) + shift;
        logits[lane] = logit;
        if (lane >= STREAMS && lane < 2u * STREAMS) {
            out[POST_OFFSET + row * POST_STRIDE + lane - STREAMS] = 2.0 * logistic(logit);
        }
    }
    workgroupBarrier();
    if (lane == 0u) {
        normalise(row);
    }
}

// In one thread's registers: no loop indexes them.
fn normalise(row: u32) {
    // What streams there are not are the identity's, which no step mixes in.
    var m0 = vec4<f32>(1.0, 0.0, 0.0, 0.0);
    var m1 = vec4<f32>(0.0, 1.0, 0.0, 0.0);
    var m2 = vec4<f32>(0.0, 0.0, 1.0, 0.0);
    var m3 = vec4<f32>(0.0, 0.0, 0.0, 1.0);
    // unroll j STREAMS
    m$j = softmax((2u + $ju) * STREAMS);
    // end
    for (var i = 0u; i < ITERATIONS; i++) {
        if (i > 0u) {
            m0 /= dot(m0, ONES) + EPS;
            m1 /= dot(m1, ONES) + EPS;
            m2 /= dot(m2, ONES) + EPS;
            m3 /= dot(m3, ONES) + EPS;
        }
        let factors = 1.0 / ((m0 + m1) + (m2 + m3) + EPS);
        m0 *= factors;
        m1 *= factors;
        m2 *= factors;
        m3 *= factors;
    }
    let to = COMB_OFFSET + row * COMB_STRIDE;
    // unroll j STREAMS
    // unroll i STREAMS
    out[to + $ju * STREAMS + $iu] = m$j[$i];
    // end
    // end
}

// Of the logits of one row of the mix, shifted by EPS.
fn softmax(first: u32) -> vec4<f32> {
    var row = vec4<f32>(LOWEST);
    var shift = vec4<f32>();
    // unroll i STREAMS
    row[$i] = logits[first + $iu];
    shift[$i] = EPS;
    // end
    let powers = exp(row - max(max(row.x, row.y), max(row.z, row.w)));
    return powers / dot(powers, ONES) + shift;
}
