// GPUs, hundreds of tokens: a workgroup owns 128 matrix rows (or 64 gates with their partners) by
// SPAN = 16 · MINE tokens, a thread 8 rows by MINE tokens. 16 elements of each row and token at a
// time lie in workgroup memory, decoded, in pairs. Threads write whole vectors: a write of one
// component may write back others, which are of another thread.
const TILE_ROWS: u32 = 128u;
const TILE_PARTS: u32 = 2u; // of 8 elements

override TILES: u32; // of rows

// By pair of elements, then by row or token, of which every sixteenth is of one thread. Only the
// innermost index is not a constant, so that compilers check it once for all.
var<workgroup> weights: array<array<array<vec2<f32>, 16>, 8>, 8>;
var<workgroup> inputs: array<array<array<vec2<f32>, 16>, MINE>, 8>;

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

// A thread owns rows column + 16 i and tokens line + 16 j.
fn product_tile(row: u32, token: u32, lane: u32) {
    let column = lane % 16u;
    let line = lane / 16u;
    let parts = BLOCKS * PARTS;
    let mine = row_start(matrix_row(row, lane / TILE_PARTS));
    let from_token = min(token + lane / TILE_PARTS, TOKENS - 1u);
    // unroll j MINE
    // unroll i 4
    var low_$j_$i = 0.0;
    var high_$j_$i = 0.0; // of the row 64 further
    // end
    // end
    var w = weights_at(mine, lane % TILE_PARTS, parts);
    var x = inputs_at(from_token, lane % TILE_PARTS, parts);
    for (var first = 0u; first < parts; first += TILE_PARTS) {
        keep(lane, w, x);
        workgroupBarrier();
        // The next parts are on their way while these are multiplied.
        w = weights_at(mine, first + TILE_PARTS + lane % TILE_PARTS, parts);
        x = inputs_at(from_token, first + TILE_PARTS + lane % TILE_PARTS, parts);
        // unroll k 8
        // unroll i 4
        let w_$k_$i = weights[$k][$i][column];
        let u_$k_$i = weights[$k][$i + 4][column];
        // end
        // unroll j MINE
        let v_$k_$j = inputs[$k][$j][line];
        // unroll i 4
        low_$j_$i = fma(w_$k_$i.y, v_$k_$j.y, fma(w_$k_$i.x, v_$k_$j.x, low_$j_$i));
        high_$j_$i = fma(u_$k_$i.y, v_$k_$j.y, fma(u_$k_$i.x, v_$k_$j.x, high_$j_$i));
        // end
        // end
        // end
        workgroupBarrier();
    }
    // unroll j MINE
    // unroll i 4
    store_both(token + line + 16u * $ju, row + column + 16u * $iu, low_$j_$i, high_$j_$i);
    // end
    // end
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
    let k = 4u * (lane % TILE_PARTS);
    weights[k][r / 16u][r % 16u] = w[0].xy;
    weights[k + 1u][r / 16u][r % 16u] = w[0].zw;
    weights[k + 2u][r / 16u][r % 16u] = w[1].xy;
    weights[k + 3u][r / 16u][r % 16u] = w[1].zw;
    if (r < SPAN) {
        inputs[k][r / 16u][r % 16u] = x[0].xy;
        inputs[k + 1u][r / 16u][r % 16u] = x[0].zw;
        inputs[k + 2u][r / 16u][r % 16u] = x[1].xy;
        inputs[k + 3u][r / 16u][r % 16u] = x[1].zw;
    }
}

// Row r of the tile in the matrix; beyond the end, the last one.
fn matrix_row(row: u32, r: u32) -> u32 {
    if (GATED) {
        return min(row + r % 64u, ROWS - 1u) + ROWS * (r / 64u);
    }
    return min(row + r, ROWS - 1u);
}

fn store_both(token: u32, row: u32, low: f32, high: f32) {
    if (token >= TOKENS || row >= ROWS) {
        return;
    }
    if (GATED) {
        store_gated(token, row, low, high);
        return;
    }
    store(token, row, low);
    if (row + 64u < ROWS) {
        store(token, row + 64u, high);
    }
}
