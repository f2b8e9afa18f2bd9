// GPUs, several rows a sequence: a workgroup owns a tile of 32 queries, those of some rows by the
// query heads of one key/value head, and one split of the positions, which it takes by 32. A thread
// holds 4 × 4 scores, then four rows of sums. Rows of several sequences are taken one after another.
override ROWS: u32; // of a tile
override BLOCK: u32; // query heads of a tile; ROWS · BLOCK is at most 32
override BLOCKS: u32; // tiles that share a key/value head
override SPLITS: u32;

const THREADS: u32 = 64u;
const TILE: u32 = 32u; // queries, and positions
const SIDE: u32 = 8u; // threads along either
const CHUNK: u32 = 8u; // quads of a key at a time
const STAGED: u32 = CHUNK + 1u; // quads from row to row: odd, so that rows lie in different banks
const MOST: u32 = 8u; // quads of a row that a thread sums

var<workgroup> stage: array<vec4<f32>, 2u * TILE * STAGED>; // queries, keys; later values
var<workgroup> weights: array<vec4<f32>, TILE * TILE / 4u>;
var<workgroup> tops: array<f32, TILE * SIDE>;
var<workgroup> entries: array<u32, TILE>;

var<private> peak: vec4<f32>; // of the thread's four queries
var<private> total: vec4<f32>; // of its own positions
var<private> acc: array<vec4<f32>, 4u * MOST>;

struct Tile {
    row: u32, // first of its sequence
    rows: u32,
    g: u32,
    head: u32, // first
    heads: u32,
}

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let shared_by = HEADS / KV_HEADS;
    let g = group.x / BLOCKS;
    let before = (group.x % BLOCKS) * BLOCK;
    let head = g * shared_by + before;
    let heads = min(BLOCK, shared_by - before);
    let first = group.y * ROWS;
    let limit = min(first + ROWS, u32(step[VALID_ROWS]));
    for (var i = 0u; i < 4u; i++) {
        let query = lane / SIDE + SIDE * i;
        let start = begin(head + min(query % BLOCK, heads - 1u), group.z == 0u);
        peak[i] = start.x;
        total[i] = select(0.0, start.y, lane % SIDE == 0u);
    }
    var row = first;
    while (row < limit) {
        let seq = step[SEQ + row];
        var stop = row;
        var low = 0xffffffffu;
        var end = 0u;
        while (stop < limit && step[SEQ + stop] == seq) {
            let last = u32(step[POSITION + stop]);
            low = min(low, first_seen(last));
            end = max(end, last + 1u);
            stop += 1u;
        }
        let dealt = deal(low, end, TILE, group.z, SPLITS);
        let tile = Tile(row, stop - row, g, head, heads);
        for (var at = dealt.x; at < dealt.y; at += TILE) {
            add_positions(tile, row - first, u32(seq), at, dealt.y, lane);
        }
        row = stop;
    }
    for (var i = 0u; i < 4u; i++) {
        tops[(lane / SIDE + SIDE * i) * SIDE + lane % SIDE] = total[i];
    }
    workgroupBarrier();
    for (var i = 0u; i < 4u; i++) {
        let query = lane / SIDE + SIDE * i;
        if (query / BLOCK < ROWS && first + query / BLOCK < limit && query % BLOCK < heads) {
            leave(first + query / BLOCK, head + query % BLOCK, group.z, i, lane);
        }
    }
}

// Softmax over up to 32 positions from `at`; `skipped` rows of the tile are of other sequences.
fn add_positions(tile: Tile, skipped: u32, seq: u32, at: u32, end: u32, lane: u32) {
    if (lane < TILE) {
        entries[lane] = entry(seq, min(at + lane, end - 1u), tile.g);
    }
    workgroupBarrier();
    let mi = lane / SIDE;
    let ni = lane % SIDE;
    var scores = array<vec4<f32>, 4>();
    for (var chunk = 0u; chunk < QUADS; chunk += CHUNK) {
        stage_queries(tile, skipped, chunk, lane);
        stage_keys(chunk, lane);
        workgroupBarrier();
        for (var quad = 0u; quad < min(CHUNK, QUADS - chunk); quad++) {
            let k0 = stage[(TILE + ni) * STAGED + quad];
            let k1 = stage[(TILE + SIDE + ni) * STAGED + quad];
            let k2 = stage[(TILE + 2u * SIDE + ni) * STAGED + quad];
            let k3 = stage[(TILE + 3u * SIDE + ni) * STAGED + quad];
            for (var i = 0u; i < 4u; i++) {
                let query = stage[(mi + SIDE * i) * STAGED + quad];
                scores[i] += vec4<f32>(
                    dot(query, k0), dot(query, k1), dot(query, k2), dot(query, k3)
                );
            }
        }
        workgroupBarrier();
    }
    let positions = vec4<u32>(at + 4u * ni) + vec4<u32>(0u, 1u, 2u, 3u);
    var seen = array<vec4<bool>, 4>();
    for (var i = 0u; i < 4u; i++) {
        let own = (mi + SIDE * i) / BLOCK - skipped; // wraps for rows before
        let last = u32(step[POSITION + tile.row + min(own, tile.rows - 1u)]);
        let stop = select(0u, min(end, last + 1u), own < tile.rows);
        seen[i] = (positions >= vec4<u32>(first_seen(last))) & (positions < vec4<u32>(stop));
        scores[i] = select(vec4<f32>(LOWEST), scores[i], seen[i]);
        tops[(mi + SIDE * i) * SIDE + ni] =
            max(max(scores[i].x, scores[i].y), max(scores[i].z, scores[i].w));
    }
    workgroupBarrier();
    for (var i = 0u; i < 4u; i++) {
        let query = mi + SIDE * i;
        var higher = peak[i];
        for (var n = 0u; n < SIDE; n++) {
            higher = max(higher, tops[query * SIDE + n]);
        }
        let kept = exp(peak[i] - higher);
        peak[i] = higher;
        let weight = select(vec4<f32>(), exp(scores[i] - higher), seen[i]);
        weights[query * SIDE + ni] = weight;
        total[i] = total[i] * kept + dot(weight, vec4<f32>(1.0));
        for (var d = 0u; d < (QUADS + SIDE - 1u) / SIDE; d++) {
            acc[i * MOST + d] *= kept;
        }
    }
    add_values(lane);
}

fn add_values(lane: u32) {
    // As many positions as fit, a multiple of four.
    let held = min(TILE, 2u * TILE * STAGED / QUADS / 4u * 4u);
    for (var start = 0u; start < TILE; start += held) {
        let count = min(held, TILE - start);
        for (var i = lane; i < count * reads(); i += THREADS) {
            var v = value(entries[start + i / reads()] + i % reads());
            for (var j = 0u; j < READ_QUADS; j++) {
                stage[i * READ_QUADS + j] = v[j];
            }
        }
        workgroupBarrier();
        for (var n = 0u; n < count; n += 4u) {
            let w0 = weights[(lane / SIDE) * SIDE + (start + n) / 4u];
            let w1 = weights[(lane / SIDE + SIDE) * SIDE + (start + n) / 4u];
            let w2 = weights[(lane / SIDE + 2u * SIDE) * SIDE + (start + n) / 4u];
            let w3 = weights[(lane / SIDE + 3u * SIDE) * SIDE + (start + n) / 4u];
            for (var d = 0u; d < (QUADS + SIDE - 1u) / SIDE; d++) {
                let quad = min(lane % SIDE + SIDE * d, QUADS - 1u);
                let v0 = stage[n * QUADS + quad];
                let v1 = stage[(n + 1u) * QUADS + quad];
                let v2 = stage[(n + 2u) * QUADS + quad];
                let v3 = stage[(n + 3u) * QUADS + quad];
                acc[d] += w0.x * v0 + w0.y * v1 + w0.z * v2 + w0.w * v3;
                acc[MOST + d] += w1.x * v0 + w1.y * v1 + w1.z * v2 + w1.w * v3;
                acc[2u * MOST + d] += w2.x * v0 + w2.y * v1 + w2.z * v2 + w2.w * v3;
                acc[3u * MOST + d] += w3.x * v0 + w3.y * v1 + w3.z * v2 + w3.w * v3;
            }
        }
        workgroupBarrier();
    }
}

fn stage_queries(tile: Tile, skipped: u32, chunk: u32, lane: u32) {
    for (var i = lane; i < TILE * CHUNK; i += THREADS) {
        let query = i / CHUNK;
        let quad = chunk + i % CHUNK;
        if (quad < QUADS) {
            let row = tile.row + min(query / BLOCK - skipped, tile.rows - 1u);
            let head = tile.head + min(query % BLOCK, tile.heads - 1u);
            let start = (Q_OFFSET + row * Q_STRIDE) / 4u + head * QUADS + quad;
            stage[query * STAGED + i % CHUNK] = q[start] * SCALE;
        }
    }
}

// Key n lies at row n % 4 · SIDE + n / 4: a thread's four positions are neighbours, yet neighbours
// among the threads read neighbouring rows.
fn stage_keys(chunk: u32, lane: u32) {
    let width = CHUNK / READ_QUADS;
    for (var i = lane; i < TILE * width; i += THREADS) {
        let n = i / width;
        let read = chunk / READ_QUADS + i % width;
        if (read < reads()) {
            var k = key(entries[n] + read);
            let to = (TILE + n % 4u * SIDE + n / 4u) * STAGED + i % width * READ_QUADS;
            for (var j = 0u; j < READ_QUADS; j++) {
                stage[to + j] = k[j];
            }
        }
    }
}

fn leave(row: u32, head: u32, split: u32, i: u32, lane: u32) {
    let query = lane / SIDE + SIDE * i;
    var sum = 0.0;
    for (var n = 0u; n < SIDE; n++) {
        sum += tops[query * SIDE + n];
    }
    let part = ((row * HEADS + head) * SPLITS + split) * (QUADS + 1u);
    for (var quad = lane % SIDE; quad < QUADS; quad += SIDE) {
        if (SPLITS == 1u) {
            let to = (OUT_OFFSET + row * OUT_STRIDE) / 4u + head * QUADS + quad;
            out[to] = acc[i * MOST + quad / SIDE] / sum;
        } else {
            out[part + 1u + quad] = acc[i * MOST + quad / SIDE];
        }
    }
    if (SPLITS > 1u && lane % SIDE == 0u) {
        out[part] = vec4<f32>(peak[i], sum, 0.0, 0.0);
    }
}
