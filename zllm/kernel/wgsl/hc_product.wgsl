// The long products of hyper-connections, whose outputs are few: a workgroup owns one split of the
// columns, four rows of w and TILE rows of x. Past the last four, it sums the squares of x instead.
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> w: array<f32>; // [OUTPUTS, COLUMNS]
@group(0) @binding(2) var<storage, read_write> parts: array<vec4<f32>>; // [ROWS, SPLITS, QUADS + 1]

override ROWS: u32;
override OUTPUTS: u32;
override QUADS: u32;
override COLUMNS: u32;
override SPLITS: u32;
override SPLIT_COLUMNS: u32;
override W_STRIDE: u32;
override X_OFFSET: u32;
override X_STRIDE: u32;

fn run(group: vec3<u32>, groups: vec3<u32>, lane: u32, size: u32) {
    let quad = group.y;
    let end = min(COLUMNS, (group.x + 1u) * SPLIT_COLUMNS);
    var w_at = vec4<u32>(4u * quad) + vec4<u32>(0u, 1u, 2u, 3u);
    w_at = min(w_at, vec4<u32>(OUTPUTS - 1u)) * W_STRIDE;
    for (var first = group.z * TILE; first < ROWS; first += groups.z * TILE) {
        // unroll r TILE
        var sum$r = vec4<f32>();
        let x$r = X_OFFSET + min(first + $ru, ROWS - 1u) * X_STRIDE;
        // end
        // AHEAD loads of each are on their way at a time.
        for (var c = group.x * SPLIT_COLUMNS + lane; c < end; c += AHEAD * THREADS) {
            // unroll a AHEAD
            let c$a = min(c + $au * THREADS, end - 1u);
            let w$a = vec4<f32>(w[w_at.x + c$a], w[w_at.y + c$a], w[w_at.z + c$a], w[w_at.w + c$a]);
            // unroll r TILE
            let z$a_$r = select(0.0, x[x$r + c$a], c + $au * THREADS < end);
            // end
            // end
            // unroll a AHEAD
            // unroll r TILE
            sum$r += z$a_$r * select(w$a, vec4<f32>(z$a_$r), quad == QUADS);
            // end
            // end
        }
        // unroll r TILE
        keep(reduce_sum(sum$r, lane, size), first + $ru, group.x, quad, lane);
        // end
    }
}

fn keep(sum: vec4<f32>, row: u32, split: u32, quad: u32, lane: u32) {
    if (lane == 0u && row < ROWS) {
        parts[(row * SPLITS + split) * (QUADS + 1u) + quad] = sum;
    }
}
