// GPUs, many tokens: a workgroup owns 64 matrix rows (or 32 gates with their partners) by 32
// tokens. Weights are decoded once into workgroup memory, 32 elements of each row at a time.
const TILE_ROWS: u32 = 64u;
const TILE_TOKENS: u32 = 32u;
const TILE_PARTS: u32 = 4u; // of 8 elements
const ROW_QUADS: u32 = 9u; // two a part, and one against bank conflicts

override TILES: u32; // of rows

var<workgroup> weights: array<vec4<f32>, 576>; // TILE_ROWS · ROW_QUADS
var<workgroup> inputs: array<vec4<f32>, 288>; // TILE_TOKENS · ROW_QUADS
var<workgroup> scales: array<f32, 32>;

@compute @workgroup_size(128)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    for (var tile = group.x; tile < TILES; tile += groups.x) {
        product_tile(tile * select(TILE_ROWS, TILE_ROWS / 2u, GATED), group.y * TILE_TOKENS, lane);
    }
}

// A thread owns rows column + 16 i and tokens line + 8 j.
fn product_tile(row: u32, token: u32, lane: u32) {
    let column = lane % 16u;
    let line = lane / 16u;
    let parts = BLOCKS * PARTS;
    var acc = array<vec4<f32>, 4>(); // of a row; one component a token
    var squares = 0.0; // of a quarter of token lane / 4
    for (var first = 0u; first < parts; first += TILE_PARTS) {
        load_weights(row, first, parts, lane);
        squares += load_inputs(token, first, parts, lane);
        workgroupBarrier();
        for (var k = 0u; k < 2u * TILE_PARTS; k++) {
            let x0 = inputs[line * ROW_QUADS + k];
            let x1 = inputs[(line + 8u) * ROW_QUADS + k];
            let x2 = inputs[(line + 16u) * ROW_QUADS + k];
            let x3 = inputs[(line + 24u) * ROW_QUADS + k];
            for (var i = 0u; i < 4u; i++) {
                let v = weights[(column + 16u * i) * ROW_QUADS + k];
                acc[i] += vec4<f32>(dot(v, x0), dot(v, x1), dot(v, x2), dot(v, x3));
            }
        }
        workgroupBarrier();
    }
    let s = token_scales(squares, line, lane);
    for (var j = 0u; j < 4u; j++) {
        let t = token + line + 8u * j;
        if (t < TOKENS) {
            let y = s[j] * vec4<f32>(acc[0][j], acc[1][j], acc[2][j], acc[3][j]);
            store_column(t, row + column, y);
        }
    }
}

fn load_weights(row: u32, first: u32, parts: u32, lane: u32) {
    for (var i = lane; i < TILE_ROWS * TILE_PARTS; i += 128u) {
        let r = i / TILE_PARTS;
        let p = first + i % TILE_PARTS;
        var v = mat2x4<f32>();
        if (p < parts) {
            v = decode(row_start(matrix_row(row, r)), p);
        }
        let to = r * ROW_QUADS + 2u * (i % TILE_PARTS);
        weights[to] = v[0];
        weights[to + 1u] = v[1];
    }
}

// Returns the sum of squares that this thread saw, always of the same token.
fn load_inputs(token: u32, first: u32, parts: u32, lane: u32) -> f32 {
    let t = min(token + lane / TILE_PARTS, TOKENS - 1u);
    let p = first + lane % TILE_PARTS;
    var a = vec4<f32>();
    var b = vec4<f32>();
    var squares = 0.0;
    if (p < parts) {
        let quads = part_quads(p);
        a = x4(t, quads.x);
        b = x4(t, quads.y);
        if (NORM) {
            squares = dot(a, a) + dot(b, b);
            a *= norm4(quads.x);
            b *= norm4(quads.y);
        }
    }
    let to = (lane / TILE_PARTS) * ROW_QUADS + 2u * (lane % TILE_PARTS);
    inputs[to] = a;
    inputs[to + 1u] = b;
    return squares;
}

// Norm scales of the thread's four tokens. Reuses `inputs`, which nobody reads any more.
fn token_scales(squares: f32, line: u32, lane: u32) -> vec4<f32> {
    if (!NORM) {
        return vec4<f32>(1.0);
    }
    inputs[lane].x = squares;
    workgroupBarrier();
    if (lane < TILE_TOKENS) {
        let i = lane * TILE_PARTS;
        let sum = inputs[i].x + inputs[i + 1u].x + inputs[i + 2u].x + inputs[i + 3u].x;
        scales[lane] = norm_scale(sum);
    }
    workgroupBarrier();
    let s = vec4<f32>(scales[line], scales[line + 8u], scales[line + 16u], scales[line + 24u]);
    workgroupBarrier();
    return s;
}

// Row r of the tile in the matrix; beyond the end, the last one.
fn matrix_row(row: u32, r: u32) -> u32 {
    if (GATED) {
        return min(row + r % 32u, ROWS - 1u) + ROWS * (r / 32u);
    }
    return min(row + r, ROWS - 1u);
}

fn store_column(token: u32, row: u32, y: vec4<f32>) {
    for (var i = 0u; i < 4u; i++) {
        let r = row + 16u * i;
        if (GATED) {
            if (i < 2u && r < ROWS) {
                store_gated(token, r, y[i], y[(i + 2u) % 4u]);
            }
        } else if (r < ROWS) {
            store(token, r, y[i]);
        }
    }
}
