// Joins what the splits of a kernel of attention left for one query, a workgroup each.
@group(0) @binding(0) var<storage, read> parts: array<vec4<f32>>; // (maximum, total), then sums
@group(0) @binding(1) var<storage, read> step: array<i32>;
@group(0) @binding(2) var<storage, read_write> out: array<vec4<f32>>;

override HEADS: u32;
override QUADS: u32;
override SPLITS: u32; // up to THREADS
override VALID_ROWS: u32; // offset of a step word
override OUT_OFFSET: u32;
override OUT_STRIDE: u32;

const THREADS: u32 = 256u;

var<workgroup> peaks: array<f32, THREADS>;
var<workgroup> scales: array<f32, THREADS>; // 0: the split saw nothing and left no sums
var<workgroup> totals: array<f32, THREADS>;
var<workgroup> slices: array<vec4<f32>, THREADS>;

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = group.y;
    if (row >= u32(step[VALID_ROWS])) {
        return;
    }
    let at = (row * HEADS + group.x) * SPLITS * (QUADS + 1u);
    var held = vec2<f32>(-3.0e38, 0.0);
    if (lane < SPLITS) {
        held = parts[at + lane * (QUADS + 1u)].xy;
    }
    peaks[lane] = held.x;
    workgroupBarrier();
    var peak = peaks[0];
    for (var s = 1u; s < SPLITS; s++) {
        peak = max(peak, peaks[s]);
    }
    let scale = select(exp(held.x - peak), 0.0, held.y == 0.0);
    scales[lane] = scale;
    totals[lane] = scale * held.y;
    workgroupBarrier();
    let stride = THREADS / QUADS;
    let slice = lane / QUADS;
    var sum = vec4<f32>();
    if (slice < stride) {
        for (var s = slice; s < SPLITS; s += stride) {
            if (scales[s] != 0.0) {
                sum += scales[s] * parts[at + s * (QUADS + 1u) + 1u + lane % QUADS];
            }
        }
    }
    slices[lane] = sum;
    workgroupBarrier();
    if (lane < QUADS) {
        for (var s = 1u; s < stride; s++) {
            sum += slices[lane + s * QUADS];
        }
        var total = 0.0;
        for (var s = 0u; s < SPLITS; s++) {
            total += totals[s];
        }
        out[(OUT_OFFSET + row * OUT_STRIDE) / 4u + group.x * QUADS + lane] = sum / total;
    }
}
