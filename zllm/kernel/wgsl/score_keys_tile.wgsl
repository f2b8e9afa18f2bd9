// GPUs: a workgroup scores 32 keys of a row, 64 heads and 32 columns of both at a time.
const TILE_HEADS: u32 = 64u;
const TILE_KEYS: u32 = 32u;
const TILE_QUADS: u32 = 8u;
const ROW_QUADS: u32 = 9u; // one against bank conflicts

override TILES: u32; // of keys

var<workgroup> heads: array<vec4<f32>, 576>; // TILE_HEADS · ROW_QUADS
var<workgroup> tile_keys: array<vec4<f32>, 288>; // TILE_KEYS · ROW_QUADS
var<workgroup> starts: array<u32, TILE_KEYS>;
var<workgroup> sums: array<f32, 512>; // 16 threads' of each key

@compute @workgroup_size(128)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    for (var i = group.y; i < ROWS; i += groups.y) {
        let count = scored(BEGIN + i);
        for (var key = group.x * TILE_KEYS; key < count; key += groups.x * TILE_KEYS) {
            score_tile(BEGIN + i, i * SCORES_STRIDE, key, count, lane);
        }
    }
}

// A thread owns heads column + 16 i and keys line + 8 j.
fn score_tile(row: u32, to: u32, key: u32, count: u32, lane: u32) {
    let column = lane % 16u;
    let line = lane / 16u;
    if (lane < TILE_KEYS) {
        starts[lane] = key_start(row, min(key + lane, count - 1u));
    }
    workgroupBarrier();
    var sum = vec4<f32>(); // one component a key
    for (var first = 0u; first < HEADS; first += TILE_HEADS) {
        // unroll i 4
        var acc$i = vec4<f32>(); // of a head
        // end
        for (var at = 0u; at < QUADS; at += TILE_QUADS) {
            load(row, first, at, lane);
            workgroupBarrier();
            for (var k = 0u; k < TILE_QUADS; k++) {
                let x0 = tile_keys[line * ROW_QUADS + k];
                let x1 = tile_keys[(line + 8u) * ROW_QUADS + k];
                let x2 = tile_keys[(line + 16u) * ROW_QUADS + k];
                let x3 = tile_keys[(line + 24u) * ROW_QUADS + k];
                // unroll i 4
                let v$i = heads[(column + 16u * $iu) * ROW_QUADS + k];
                acc$i += vec4<f32>(dot(v$i, x0), dot(v$i, x1), dot(v$i, x2), dot(v$i, x3));
                // end
            }
            workgroupBarrier();
        }
        // unroll i 4
        let head$i = first + column + 16u * $iu;
        if (head$i < HEADS) {
            let w = head_weights[WEIGHTS_OFFSET + row * WEIGHTS_STRIDE + head$i];
            sum += w * max(acc$i * SCALE, vec4<f32>());
        }
        // end
    }
    for (var j = 0u; j < 4u; j++) {
        sums[(line + 8u * j) * 16u + column] = sum[j];
    }
    workgroupBarrier();
    if (lane < TILE_KEYS && key + lane < count) {
        var total = 0.0;
        for (var i = 0u; i < 16u; i++) {
            total += sums[lane * 16u + (i + lane) % 16u];
        }
        scores[to + key + lane] = total;
    }
    workgroupBarrier();
}

// Heads from `first` on and the tile's keys, columns from quad `at` on; zero beyond the last one.
fn load(row: u32, first: u32, at: u32, lane: u32) {
    let quad = at + lane % TILE_QUADS;
    let place = (lane / TILE_QUADS) * ROW_QUADS + lane % TILE_QUADS;
    for (var i = 0u; i < TILE_HEADS; i += 16u) {
        let head = first + i + lane / TILE_QUADS;
        var v = vec4<f32>();
        if (head < HEADS && quad < QUADS) {
            v = q[(Q_OFFSET + row * Q_STRIDE) / 4u + head * QUADS + quad];
        }
        heads[place + i * ROW_QUADS] = v;
    }
    for (var i = 0u; i < TILE_KEYS; i += 16u) {
        var v = vec4<f32>();
        if (quad < QUADS) {
            v = keys[starts[i + lane / TILE_QUADS] + quad];
        }
        tile_keys[place + i * ROW_QUADS] = v;
    }
}
