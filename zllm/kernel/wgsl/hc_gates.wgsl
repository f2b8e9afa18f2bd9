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
        gather(row, lane);
        let first = group.x * BLOCK;
        if (first < WIDTH) {
            weigh(row, first, lane);
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
    var sum = vec4<f32>();
    if (lane < dealers * width) {
        for (var s = lane / width; s < SPLITS; s += dealers) {
            sum += parts[(row * SPLITS + s) * width + quad];
        }
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
        let factor = scale[min(lane / STREAMS, 2u)] / rms;
        logits[lane] = products[lane / 4u][lane % 4u] * factor + base[lane];
    }
    workgroupBarrier();
}

fn weigh(row: u32, first: u32, lane: u32) {
    let pre = vec4<f32>(gate(0u), gate(1u), gate(2u), gate(3u));
    for (var c = first + lane; c < min(first + BLOCK, WIDTH); c += THREADS) {
        let at = X_OFFSET + row * X_STRIDE + c;
        var sum = pre.x * x[at];
        if (STREAMS > 1u) {
            sum += pre.y * x[at + WIDTH];
        }
        if (STREAMS > 2u) {
            sum += pre.z * x[at + 2u * WIDTH];
        }
        if (STREAMS > 3u) {
            sum += pre.w * x[at + 3u * WIDTH];
        }
        out[OUT_OFFSET + row * OUT_STRIDE + c] = sum;
    }
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
    for (var j = 0u; j < STREAMS; j++) {
        out[POST_OFFSET + row * POST_STRIDE + j] = 2.0 * logistic(logits[STREAMS + j]);
        let first = (2u + j) * STREAMS;
        var peak = logits[first];
        for (var i = 1u; i < STREAMS; i++) {
            peak = max(peak, logits[first + i]);
        }
        var powers = vec4<f32>();
        for (var i = 0u; i < STREAMS; i++) {
            powers[i] = exp(logits[first + i] - peak);
        }
        m[j] = powers / dot(powers, ONES);
        for (var i = 0u; i < STREAMS; i++) {
            m[j][i] += EPS;
        }
    }
    // Another variable, which no loop indexes: it stays in registers.
    var normed = columns_normed(m);
    for (var i = 1u; i < ITERATIONS; i++) {
        normed = columns_normed(rows_normed(normed));
    }
    m = normed;
    for (var i = 0u; i < STREAMS * STREAMS; i++) {
        out[COMB_OFFSET + row * COMB_STRIDE + i] = m[i / STREAMS][i % STREAMS];
    }
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
