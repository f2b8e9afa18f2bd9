// GPUs, many pairs of an expert: a workgroup owns 64 matrix rows (or 32 gates with their partners)
// by a tile of 32 pairs. Weights are decoded once into workgroup memory, 32 elements of each row at
// a time.
const TILE_ROWS: u32 = 64u;
const TILE_TOKENS: u32 = 32u;
const TILE_PARTS: u32 = 4u; // of 8 elements
const ROW_QUADS: u32 = 9u; // two a part, and one against bank conflicts

override TILES: u32; // of rows

var<workgroup> decoded: array<vec4<f32>, 576>; // TILE_ROWS · ROW_QUADS
var<workgroup> inputs: array<vec4<f32>, 288>; // TILE_TOKENS · ROW_QUADS

@compute @workgroup_size(128)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    for (var i = group.y; i < tile_count(); i += groups.y) {
        let tile = tile_at(i);
        if (!in_bank(tile.x)) {
            continue;
        }
        for (var t = group.x; t < TILES; t += groups.x) {
            product_tile(tile, t * select(TILE_ROWS, TILE_ROWS / 2u, GATED), lane);
        }
    }
}

// A thread owns rows column + 16 i and pairs line + 8 j.
fn product_tile(tile: vec3<u32>, row: u32, lane: u32) {
    let column = lane % 16u;
    let line = lane / 16u;
    let parts = BLOCKS * PARTS;
    let from_row = source_row(tile.x, min(tile.y + lane / TILE_PARTS, tile.z - 1u));
    // unroll i 4
    var acc$i = vec4<f32>(); // of a row; one component a pair
    // end
    for (var first = 0u; first < parts; first += TILE_PARTS) {
        load_weights(tile.x, row, first, parts, lane);
        load_inputs(from_row, first, parts, lane);
        workgroupBarrier();
        for (var k = 0u; k < 2u * TILE_PARTS; k++) {
            let x0 = inputs[line * ROW_QUADS + k];
            let x1 = inputs[(line + 8u) * ROW_QUADS + k];
            let x2 = inputs[(line + 16u) * ROW_QUADS + k];
            let x3 = inputs[(line + 24u) * ROW_QUADS + k];
            // unroll i 4
            let v$i = decoded[(column + 16u * $iu) * ROW_QUADS + k];
            acc$i += vec4<f32>(dot(v$i, x0), dot(v$i, x1), dot(v$i, x2), dot(v$i, x3));
            // end
        }
        workgroupBarrier();
    }
    // unroll j 4
    let place$j = tile.y + line + 8u * $ju;
    if (place$j < tile.z) {
        let y = vec4<f32>(acc0[$j], acc1[$j], acc2[$j], acc3[$j]);
        store_column(tile.x, place$j, row + column, y);
    }
    // end
}

fn load_weights(expert: u32, row: u32, first: u32, parts: u32, lane: u32) {
    for (var i = lane; i < TILE_ROWS * TILE_PARTS; i += 128u) {
        let p = first + i % TILE_PARTS;
        var v = mat2x4<f32>();
        if (p < parts) {
            v = decode(row_start(matrix_row(expert, row, i / TILE_PARTS)), p);
        }
        let to = (i / TILE_PARTS) * ROW_QUADS + 2u * (i % TILE_PARTS);
        decoded[to] = v[0];
        decoded[to + 1u] = v[1];
    }
}

fn load_inputs(from_row: u32, first: u32, parts: u32, lane: u32) {
    let p = first + lane % TILE_PARTS;
    var a = vec4<f32>();
    var b = vec4<f32>();
    if (p < parts) {
        let quads = part_quads(p);
        a = x4(from_row, quads.x);
        b = x4(from_row, quads.y);
    }
    let to = (lane / TILE_PARTS) * ROW_QUADS + 2u * (lane % TILE_PARTS);
    inputs[to] = a;
    inputs[to + 1u] = b;
}

// Row r of the tile in the matrix; beyond the end, the last one.
fn matrix_row(expert: u32, row: u32, r: u32) -> u32 {
    if (GATED) {
        return bank_row(expert, min(row + r % 32u, ROWS - 1u), r / 32u);
    }
    return bank_row(expert, min(row + r, ROWS - 1u), 0u);
}

fn store_column(expert: u32, place: u32, row: u32, y: vec4<f32>) {
    // unroll i 4
    if (row + 16u * $iu < ROWS && (!GATED || $iu < 2u)) {
        store(expert, place, row + 16u * $iu, y[$i], y[($iu + 2u) % 4u]);
    }
    // end
}
