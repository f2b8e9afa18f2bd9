// GPUs: a workgroup owns 16 heads of a row and one split of its keys, 32 of them at a time, so that
// a key is read once for 16 heads. With several splits it leaves (maximum, total) and unscaled sums
// in `out` for attend_combine.
const TILE_HEADS: u32 = 16u;
const TILE_KEYS: u32 = 32u;
const TILE_QUADS: u32 = 8u;
const ROW_QUADS: u32 = 9u; // one against bank conflicts

override SPLITS: u32;
override SPLIT_KEYS: u32; // a multiple of TILE_KEYS
override SLICES: u32; // threads of a quad
override SLICE_HEADS: u32; // heads of a slice

var<workgroup> heads: array<vec4<f32>, 144>; // TILE_HEADS · ROW_QUADS
var<workgroup> keys: array<vec4<f32>, 288>; // TILE_KEYS · ROW_QUADS
var<workgroup> places: array<u32, TILE_KEYS>;
var<workgroup> scores: array<f32, 512>; // [heads, keys]
var<workgroup> weights: array<f32, 512>; // [keys, heads]
var<workgroup> peaks: array<f32, TILE_HEADS>;
var<workgroup> kept: array<f32, TILE_HEADS>; // what a higher peak leaves of the sums so far

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = group.y;
    if (row >= u32(step[VALID_ROWS])) {
        return;
    }
    let seq = u32(step[SEQ + row]);
    let position = u32(step[POSITION + row]);
    let first = group.z * SPLIT_KEYS;
    let end = min(all_keys(position), first + SPLIT_KEYS);
    let head = group.x * TILE_HEADS;
    // Of scores a thread owns a key and two heads; of sums a quad and a slice of heads.
    let pair = vec2<u32>(2u * (lane / TILE_KEYS), 2u * (lane / TILE_KEYS) + 1u);
    let key = lane % TILE_KEYS;
    let slice = lane / QUADS;
    let quad = lane % QUADS;
    var peak = vec2<f32>(LOWEST);
    if (group.z == 0u) { // the sinks are counted once
        peak = vec2<f32>(sink(head + pair.x), sink(head + pair.y));
    }
    // unroll i SLICE_HEADS
    let own$i = min(slice * SLICE_HEADS + $iu, TILE_HEADS - 1u);
    var acc$i = vec4<f32>();
    var total$i = select(0.0, 1.0, group.z == 0u);
    // end
    for (var tile = first; tile < end; tile += TILE_KEYS) {
        if (lane < TILE_KEYS) {
            places[lane] = NOWHERE;
            if (tile + lane < end) {
                places[lane] = place(row, seq, position, tile + lane);
            }
        }
        workgroupBarrier();
        let seen = places[key] != NOWHERE;
        let score = select(vec2<f32>(LOWEST), SCALE * products(row, head, pair, key, lane), seen);
        scores[pair.x * TILE_KEYS + key] = score.x;
        scores[pair.y * TILE_KEYS + key] = score.y;
        workgroupBarrier();
        var higher = peak;
        for (var i = 0u; i < TILE_KEYS; i++) {
            let other = vec2<f32>(scores[pair.x * TILE_KEYS + i], scores[pair.y * TILE_KEYS + i]);
            higher = max(higher, other);
        }
        let weight = select(vec2<f32>(), exp(score - higher), seen);
        weights[key * TILE_HEADS + pair.x] = weight.x;
        weights[key * TILE_HEADS + pair.y] = weight.y;
        if (key == 0u) {
            kept[pair.x] = exp(peak.x - higher.x);
            kept[pair.y] = exp(peak.y - higher.y);
        }
        peak = higher;
        workgroupBarrier();
        if (slice < SLICES) {
            // unroll i SLICE_HEADS
            acc$i *= kept[own$i];
            total$i *= kept[own$i];
            // end
            for (var j = 0u; j < min(TILE_KEYS, end - tile); j++) {
                let v = key_quad(places[j], quad);
                // unroll i SLICE_HEADS
                let w$i = weights[j * TILE_HEADS + own$i];
                acc$i += w$i * v;
                total$i += w$i;
                // end
            }
        }
        workgroupBarrier();
    }
    if (key == 0u) {
        peaks[pair.x] = peak.x;
        peaks[pair.y] = peak.y;
    }
    workgroupBarrier();
    // unroll i SLICE_HEADS
    let h$i = slice * SLICE_HEADS + $iu;
    if (slice < SLICES && h$i < TILE_HEADS && head + h$i < HEADS) {
        leave(row, head + h$i, group.z, quad, acc$i, vec2<f32>(peaks[own$i], total$i));
    }
    // end
}

fn sink(head: u32) -> f32 {
    return sinks[min(head, HEADS - 1u)];
}

// A key times two heads, 32 columns at a time through workgroup memory.
fn products(row: u32, head: u32, pair: vec2<u32>, key: u32, lane: u32) -> vec2<f32> {
    var sum = vec2<f32>();
    let line = lane / TILE_QUADS;
    let column = lane % TILE_QUADS;
    for (var at = 0u; at < QUADS; at += TILE_QUADS) {
        let inside = at + column < QUADS;
        var v = vec4<f32>();
        if (inside) {
            v = key_quad(places[line], at + column);
        }
        keys[line * ROW_QUADS + column] = v;
        if (line < TILE_HEADS) {
            v = vec4<f32>();
            if (inside && head + line < HEADS) {
                v = q[(Q_OFFSET + row * Q_STRIDE) / 4u + (head + line) * QUADS + at + column];
            }
            heads[line * ROW_QUADS + column] = v;
        }
        workgroupBarrier();
        for (var k = 0u; k < TILE_QUADS; k++) {
            let x = keys[key * ROW_QUADS + k];
            sum += vec2<f32>(
                dot(heads[pair.x * ROW_QUADS + k], x), dot(heads[pair.y * ROW_QUADS + k], x)
            );
        }
        workgroupBarrier();
    }
    return sum;
}

fn leave(row: u32, head: u32, split: u32, quad: u32, sum: vec4<f32>, softmax: vec2<f32>) {
    if (SPLITS == 1u) {
        out[(OUT_OFFSET + row * OUT_STRIDE) / 4u + head * QUADS + quad] = sum / softmax.y;
        return;
    }
    let to = ((row * HEADS + head) * SPLITS + split) * (QUADS + 1u);
    out[to + 1u + quad] = sum;
    if (quad == 0u) {
        out[to] = vec4<f32>(softmax, 0.0, 0.0);
    }
}
