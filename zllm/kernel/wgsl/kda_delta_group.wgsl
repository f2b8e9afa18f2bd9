// GPUs: a workgroup owns WIDTH columns of one head, a thread 16 keys of one column, in registers
// from the first row to the last. The next row's vectors are fetched while one is worked on: all
// that threads share has two places, and a row needs one barrier.
override THREADS: u32; // WIDTH × SLICES, at least 16 × SLICES
override WIDTH: u32;
override SLICES: u32; // runs of 16 keys

var<workgroup> keys: array<vec4<f32>, 128>;
var<workgroup> queries: array<vec4<f32>, 128>;
var<workgroup> decays: array<vec4<f32>, 128>; // factors, not their logarithms
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
        var ahead = vec3<f32>();
        var value_ahead = 0.0;
        if (row < last) {
            ahead = fetch(row + 1u, head, lane);
            value_ahead = value_of(row + 1u, head, column);
        }
        let at = 64u * side + 4u * slice;
        let key = mat4x4<f32>(keys[at], keys[at + 1u], keys[at + 2u], keys[at + 3u]);
        let query = mat4x4<f32>(
            queries[at], queries[at + 1u], queries[at + 2u], queries[at + 3u]
        );
        m = mat4x4<f32>(
            m[0] * decays[at],
            m[1] * decays[at + 1u],
            m[2] * decays[at + 2u],
            m[3] * decays[at + 3u],
        );
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

// Number `lane` of a row's k, q and decay; zeros beyond the head.
fn fetch(row: u32, head: u32, lane: u32) -> vec3<f32> {
    if (lane >= SIZE) {
        return vec3<f32>();
    }
    let at = head * SIZE + lane;
    return vec3<f32>(
        k[K_OFFSET + row * K_STRIDE + at],
        q[Q_OFFSET + row * Q_STRIDE + at],
        exp(g[G_OFFSET + row * G_STRIDE + at]),
    );
}

fn place(side: u32, lane: u32, numbers: vec3<f32>) {
    if (lane < 16u * SLICES) {
        keys[side + lane / 4u][lane % 4u] = numbers.x;
        queries[side + lane / 4u][lane % 4u] = numbers.y;
        decays[side + lane / 4u][lane % 4u] = numbers.z;
    }
}

fn value_of(row: u32, head: u32, column: u32) -> f32 {
    return v[V_OFFSET + row * V_STRIDE + head * SIZE + min(column, SIZE - 1u)];
}

fn inner(a: mat4x4<f32>, b: mat4x4<f32>) -> f32 {
    return dot(a[0], b[0]) + dot(a[1], b[1]) + dot(a[2], b[2]) + dot(a[3], b[3]);
}
