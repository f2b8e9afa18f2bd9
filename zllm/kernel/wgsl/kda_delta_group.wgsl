// GPUs: a workgroup owns WIDTH columns of one head, a thread 16 keys of one column, in registers
// from the first row to the last. The next row's vectors are fetched while one is worked on: all
// that threads share has two places, and a row needs one barrier.
override THREADS: u32; // WIDTH × SLICES, at least 16 × SLICES
override WIDTH: u32;
override SLICES: u32; // runs of 16 keys

const KEYS = 0u; // where in `staged` two rows' vectors lie
const QUERIES = 128u;
const DECAYS = 256u; // factors, not their logarithms

var<workgroup> staged: array<vec4<f32>, 384>;
var<workgroup> dots: array<vec2<f32>, 512>; // of each slice and column
var<workgroup> norms: array<vec3<f32>, 32>; // of each slice

@compute @workgroup_size(THREADS)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let seq = group.z;
    if (seq >= u32(step[VALID_SEQS])) {
        return;
    }
    let head = group.y;
    let column = group.x * WIDTH + lane % WIDTH;
    let slice = lane / WIDTH;
    let first = u32(step[FIRST_ROW + seq]);
    let last = u32(step[LAST_ROW + seq]);
    var m = mat4x4<f32>();
    if (step[POSITION + first] > 0 && column < SIZE) {
        let origin = state_at(step[READ_PLANE + seq], head) + column;
        let at = 16u * slice;
        m = mat4x4<f32>(
            four(origin, at), four(origin, at + 4u), four(origin, at + 8u), four(origin, at + 12u)
        );
    }
    place(0u, lane, fetch(first, head, lane));
    var value = value_of(first, head, column);
    workgroupBarrier();
    for (var row = first; row <= last; row++) {
        let side = (row - first) % 2u;
        var ahead = vec4<f32>();
        var value_ahead = 0.0;
        if (row < last) {
            ahead = fetch(row + 1u, head, lane);
            value_ahead = value_of(row + 1u, head, column);
        }
        let at = 64u * side + 4u * slice;
        let key = sixteen(KEYS + at);
        let query = sixteen(QUERIES + at);
        let decay = sixteen(DECAYS + at);
        m = mat4x4<f32>(m[0] * decay[0], m[1] * decay[1], m[2] * decay[2], m[3] * decay[3]);
        dots[256u * side + lane] = vec2<f32>(inner(m, key), inner(m, query));
        if (lane % WIDTH == 0u) {
            norms[16u * side + slice] =
                vec3<f32>(inner(key, key), inner(query, query), inner(key, query));
        }
        place(64u * (1u - side), lane, ahead);
        workgroupBarrier();
        var dots_sum = vec2<f32>();
        var norms_sum = vec3<f32>();
        for (var i = 0u; i < SLICES; i++) {
            dots_sum += dots[256u * side + i * WIDTH + lane % WIDTH];
            norms_sum += norms[16u * side + i];
        }
        let write_gate = beta[BETA_OFFSET + row * BETA_STRIDE + head];
        let now = change(dots_sum, norms_sum, value, write_gate);
        m += now.written * key;
        if (slice == 0u && column < SIZE) {
            out[OUT_OFFSET + row * OUT_STRIDE + head * SIZE + column] = now.output;
        }
        value = value_ahead;
    }
    if (column < SIZE) {
        let to = state_at(step[WRITTEN_PLANE + seq], head) + column;
        let at = 16u * slice;
        keep(to, at, m[0]);
        keep(to, at + 4u, m[1]);
        keep(to, at + 8u, m[2]);
        keep(to, at + 12u, m[3]);
    }
}

// Four keys' entries of a column.
fn four(origin: u32, at: u32) -> vec4<f32> {
    return vec4<f32>(
        entry(origin, at), entry(origin, at + 1u), entry(origin, at + 2u), entry(origin, at + 3u)
    );
}

fn entry(origin: u32, at: u32) -> f32 {
    return select(0.0, planes[origin + min(at, SIZE - 1u) * SIZE], at < SIZE);
}

fn keep(to: u32, at: u32, entries: vec4<f32>) {
    keep_one(to, at, entries.x);
    keep_one(to, at + 1u, entries.y);
    keep_one(to, at + 2u, entries.z);
    keep_one(to, at + 3u, entries.w);
}

fn keep_one(to: u32, at: u32, entry: f32) {
    if (at < SIZE) {
        planes[to + at * SIZE] = entry;
    }
}

// A thread fetches and places four numbers of a row: of its k, its q or its decay; zeros beyond the
// head.
fn fetch(row: u32, head: u32, lane: u32) -> vec4<f32> {
    let quads = 4u * SLICES;
    let at = 4u * (lane % quads);
    let first = head * SIZE;
    if (lane < quads) {
        let origin = K_OFFSET + row * K_STRIDE + first;
        // unroll i 4
        let k_$i = k[origin + min(at + $iu, SIZE - 1u)];
        // end
        return within(at, vec4<f32>(k_0, k_1, k_2, k_3));
    }
    if (lane < 2u * quads) {
        let origin = Q_OFFSET + row * Q_STRIDE + first;
        // unroll i 4
        let q_$i = q[origin + min(at + $iu, SIZE - 1u)];
        // end
        return within(at, vec4<f32>(q_0, q_1, q_2, q_3));
    }
    if (lane < 3u * quads) {
        let origin = G_OFFSET + row * G_STRIDE + first;
        // unroll i 4
        let g_$i = g[origin + min(at + $iu, SIZE - 1u)];
        // end
        return within(at, exp(vec4<f32>(g_0, g_1, g_2, g_3)));
    }
    return vec4<f32>();
}

fn within(at: u32, numbers: vec4<f32>) -> vec4<f32> {
    let places = vec4<u32>(at) + vec4<u32>(0u, 1u, 2u, 3u);
    return select(vec4<f32>(), numbers, places < vec4<u32>(SIZE));
}

fn place(side: u32, lane: u32, numbers: vec4<f32>) {
    let quads = 4u * SLICES;
    if (lane < 3u * quads) {
        staged[128u * (lane / quads) + side + lane % quads] = numbers;
    }
}

fn sixteen(at: u32) -> mat4x4<f32> {
    return mat4x4<f32>(staged[at], staged[at + 1u], staged[at + 2u], staged[at + 3u]);
}

fn value_of(row: u32, head: u32, column: u32) -> f32 {
    return v[V_OFFSET + row * V_STRIDE + head * SIZE + min(column, SIZE - 1u)];
}

fn inner(a: mat4x4<f32>, b: mat4x4<f32>) -> f32 {
    return dot(a[0], b[0]) + dot(a[1], b[1]) + dot(a[2], b[2]) + dot(a[3], b[3]);
}
