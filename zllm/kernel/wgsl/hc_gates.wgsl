// From the products of hc_product to what a sublayer reads of up to four streams, and how they go
// on: post gates, and a mix whose rows and columns are normalised in turn (Sinkhorn). A workgroup
// owns BLOCK columns of a row; where there is one more, it owns the row's post gates and mix.
@group(0) @binding(0) var<storage, read> parts: array<vec4<f32>>; // [ROWS, SPLITS, QUADS + 1]
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read> base: array<f32>;
@group(0) @binding(3) var<storage, read> scale: array<f32>;
@group(0) @binding(4) var<storage, read_write> out: array<f32>;

override THREADS: u32; // more than QUADS, no less than OUTPUTS
override ROWS: u32;
override STREAMS: u32;
override WIDTH: u32;
override OUTPUTS: u32;
override QUADS: u32;
override SPLITS: u32;
override BLOCK: u32;
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

var<workgroup> dealt: array<vec4<f32>, 256>;
var<workgroup> products: array<vec4<f32>, 16>;
var<workgroup> logits: array<f32, 32>; // of pre and post gates, then of the mix

@compute @workgroup_size(THREADS)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    for (var row = group.y; row < ROWS; row += groups.y) {
        let first = group.x * BLOCK;
        let column = first + lane;
        // Asked for before the products are there.
        let streams = streams_at(row, min(column, WIDTH - 1u));
        gather(row, lane);
        if (first < WIDTH) {
            weigh(row, column, min(first + BLOCK, WIDTH), streams);
        } else if (lane == 0u) {
            mix(row);
        }
    }
}

// The logits of a row: sums over all splits, of the streams normed, scaled and shifted.
fn gather(row: u32, lane: u32) {
    let width = QUADS + 1u;
    let quad = lane % width;
    let dealers = THREADS / width;
    let output = min(lane, OUTPUTS - 1u);
    let shift = base[output];
    let factor = scale[min(output / STREAMS, 2u)];
    var sum = vec4<f32>();
    for (var s = lane / width; s < SPLITS; s += 4u * dealers) {
        // unroll i 4
        let part$i = parts[(row * SPLITS + min(s + $iu * dealers, SPLITS - 1u)) * width + quad];
        // end
        // unroll i 4
        sum += select(vec4<f32>(), part$i, s + $iu * dealers < SPLITS);
        // end
    }
    workgroupBarrier(); // of the row before all was read
    dealt[lane] = sum;
    workgroupBarrier();
    if (lane < width) {
        for (var i = 1u; i < dealers; i++) {
            sum += dealt[i * width + lane];
        }
        products[lane] = sum;
    }
    workgroupBarrier();
    if (lane < OUTPUTS) {
        let rms = sqrt(products[QUADS].x / f32(STREAMS * WIDTH) + NORM_EPS);
        logits[lane] = products[lane / 4u][lane % 4u] * (factor / rms) + shift;
    }
    workgroupBarrier();
}

fn weigh(row: u32, column: u32, end: u32, streams: vec4<f32>) {
    let pre = vec4<f32>(gate(0u), gate(1u), gate(2u), gate(3u));
    var four = streams;
    for (var c = column; c < end; c += THREADS) {
        if (c != column) {
            four = streams_at(row, c);
        }
        out[OUT_OFFSET + row * OUT_STRIDE + c] = dot(pre, four);
    }
}

// A column of each stream; zeros for those that there are not.
fn streams_at(row: u32, c: u32) -> vec4<f32> {
    let at = X_OFFSET + row * X_STRIDE + c;
    var four = vec4<f32>(x[at], 0.0, 0.0, 0.0);
    if (STREAMS > 1u) {
        four.y = x[at + WIDTH];
    }
    if (STREAMS > 2u) {
        four.z = x[at + 2u * WIDTH];
    }
    if (STREAMS > 3u) {
        four.w = x[at + 3u * WIDTH];
    }
    return four;
}

fn gate(n: u32) -> f32 {
    return select(0.0, logistic(logits[n]) + EPS, n < STREAMS);
}

fn mix(row: u32) {
    // m[j] is row j; what streams there are not is the identity's, which no step mixes in.
    var m = mat4x4<f32>(
        vec4<f32>(1.0, 0.0, 0.0, 0.0), vec4<f32>(0.0, 1.0, 0.0, 0.0),
        vec4<f32>(0.0, 0.0, 1.0, 0.0), vec4<f32>(0.0, 0.0, 0.0, 1.0)
    );
    let real = vec4<u32>(0u, 1u, 2u, 3u) < vec4<u32>(STREAMS);
    // unroll j 4
    if ($j < STREAMS) {
        let at = (2u + $j) * STREAMS;
        let four = vec4<f32>(logits[at], logits[at + 1u], logits[at + 2u], logits[at + 3u]);
        let known = select(vec4<f32>(-3e38), four, real);
        let peak = max(max(known.x, known.y), max(known.z, known.w));
        let powers = exp(known - peak);
        m[$j] = powers / dot(powers, ONES) + select(vec4<f32>(), vec4<f32>(EPS), real);
    }
    // end
    m = columns_normed(m);
    for (var i = 1u; i < ITERATIONS; i++) {
        m = columns_normed(rows_normed(m));
    }
    // unroll j 4
    if ($j < STREAMS) {
        out[POST_OFFSET + row * POST_STRIDE + $j] = 2.0 * logistic(logits[STREAMS + $j]);
        // unroll i 4
        if ($i < STREAMS) {
            out[COMB_OFFSET + row * COMB_STRIDE + $j * STREAMS + $i] = m[$j][$i];
        }
        // end
    }
    // end
}

fn rows_normed(m: mat4x4<f32>) -> mat4x4<f32> {
    let sums = vec4<f32>(dot(m[0], ONES), dot(m[1], ONES), dot(m[2], ONES), dot(m[3], ONES));
    let factors = 1.0 / (sums + EPS);
    return mat4x4<f32>(
        m[0] * factors.x, m[1] * factors.y, m[2] * factors.z, m[3] * factors.w
    );
}

fn columns_normed(m: mat4x4<f32>) -> mat4x4<f32> {
    let factors = 1.0 / (m[0] + m[1] + m[2] + m[3] + EPS);
    return mat4x4<f32>(m[0] * factors, m[1] * factors, m[2] * factors, m[3] * factors);
}
