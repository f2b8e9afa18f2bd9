// GPUs, hundreds of tokens: a workgroup owns 128 matrix rows (or 64 gates with their partners) by
// SPAN = 64 · SPANS tokens, a thread 8 rows by MINE = 4 · SPANS tokens. 16 elements of each row and
// token at a time lie in workgroup memory, element by element, decoded. Numbers of four rows or
// tokens are of different threads, and so are no vector: a write of one component may write back
// the others. Compilers still read the four at once.
const TILE_ROWS: u32 = 128u;
const DEPTH: u32 = 16u;
const TILE_PARTS: u32 = 2u; // of 8 elements

override TILES: u32; // of rows

// Compilers check the index of an inner array once for all elements.
var<workgroup> weights: array<array<array<f32, 4>, 32>, DEPTH>; // TILE_ROWS / 4 quads of rows
var<workgroup> inputs: array<array<array<f32, 4>, SPAN / 4u>, DEPTH>;

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    for (var tile = group.x; tile < TILES; tile += groups.x) {
        product_tile(tile * select(TILE_ROWS, TILE_ROWS / 2u, GATED), group.y * SPAN, lane);
    }
}

// A thread owns quads of rows lane % 16 and 16 + lane % 16, and MINE / 4 quads of tokens 16 apart.
fn product_tile(row: u32, token: u32, lane: u32) {
    let column = lane % 16u;
    let line = lane / 16u;
    let parts = BLOCKS * PARTS;
    let mine = row_start(matrix_row(row, lane / TILE_PARTS));
    let from_token = min(token + lane / TILE_PARTS, TOKENS - 1u);
    var acc = array<vec4<f32>, 2u * MINE>(); // of a token; one component a row
    var w = weights_at(mine, lane % TILE_PARTS, parts);
    var x = inputs_at(from_token, lane % TILE_PARTS, parts);
    for (var first = 0u; first < parts; first += TILE_PARTS) {
        keep(lane, w, x);
        workgroupBarrier();
        // The next parts are on their way while these are multiplied.
        w = weights_at(mine, first + TILE_PARTS + lane % TILE_PARTS, parts);
        x = inputs_at(from_token, first + TILE_PARTS + lane % TILE_PARTS, parts);
        // unroll k 16
        let low_$k = vec4<f32>(
            weights[$k][column][0], weights[$k][column][1],
            weights[$k][column][2], weights[$k][column][3]
        );
        let high_$k = vec4<f32>(
            weights[$k][16u + column][0], weights[$k][16u + column][1],
            weights[$k][16u + column][2], weights[$k][16u + column][3]
        );
        // unroll j SPANS
        let v_$k_$j = vec4<f32>(
            inputs[$k][16u * $ju + line][0], inputs[$k][16u * $ju + line][1],
            inputs[$k][16u * $ju + line][2], inputs[$k][16u * $ju + line][3]
        );
        // unroll i 4
        acc[8 * $j + 2 * $i] += v_$k_$j[$i] * low_$k;
        acc[8 * $j + 2 * $i + 1] += v_$k_$j[$i] * high_$k;
        // end
        // end
        // end
        workgroupBarrier();
    }
    for (var j = 0u; j < MINE; j++) {
        let t = token + 64u * (j / 4u) + 4u * line + j % 4u;
        if (t < TOKENS) {
            store_rows(t, row + 4u * column, acc[2u * j], acc[2u * j + 1u]);
        }
    }
}

fn weights_at(start: u32, part: u32, parts: u32) -> mat2x4<f32> {
    if (part >= parts) {
        return mat2x4<f32>();
    }
    return decode(start, part);
}

fn inputs_at(token: u32, part: u32, parts: u32) -> mat2x4<f32> {
    if (part >= parts) {
        return mat2x4<f32>();
    }
    let quads = part_quads(part);
    return mat2x4<f32>(x4(token, quads.x), x4(token, quads.y));
}

fn keep(lane: u32, w: mat2x4<f32>, x: mat2x4<f32>) {
    let r = lane / TILE_PARTS;
    let k = 8u * (lane % TILE_PARTS);
    for (var i = 0u; i < 4u; i++) {
        weights[k + i][r / 4u][r % 4u] = w[0][i];
        weights[k + 4u + i][r / 4u][r % 4u] = w[1][i];
    }
    if (r < SPAN) {
        for (var i = 0u; i < 4u; i++) {
            inputs[k + i][r / 4u][r % 4u] = x[0][i];
            inputs[k + 4u + i][r / 4u][r % 4u] = x[1][i];
        }
    }
}

// Row r of the tile in the matrix; beyond the end, the last one.
fn matrix_row(row: u32, r: u32) -> u32 {
    if (GATED) {
        return min(row + r % 64u, ROWS - 1u) + ROWS * (r / 64u);
    }
    return min(row + r, ROWS - 1u);
}

fn store_rows(token: u32, row: u32, low: vec4<f32>, high: vec4<f32>) {
    for (var i = 0u; i < 4u; i++) {
        if (GATED) {
            if (row + i < ROWS) {
                store_gated(token, row + i, low[i], high[i]);
            }
        } else {
            if (row + i < ROWS) {
                store(token, row + i, low[i]);
            }
            if (row + 64u + i < ROWS) {
                store(token, row + 64u + i, high[i]);
            }
        }
    }
}
