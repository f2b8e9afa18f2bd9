// GPUs, several rows a sequence: a workgroup owns a tile of 32 queries, those of some rows by the
// query heads of one key/value head, and one split of the positions, which it takes by 32. A thread
// holds 4 × 4 scores, then four rows of sums. Rows of several sequences are taken one after
// another. Text: BLOCK query heads of a tile, DEPTH quads of a row of sums that a thread holds.
override ROWS: u32; // of a tile; ROWS · BLOCK is at most 32
override BLOCKS: u32; // tiles that share a key/value head
override SPLITS: u32;

const THREADS: u32 = 64u;
const TILE: u32 = 32u; // queries, and positions
const SIDE: u32 = 8u; // threads along either
const CHUNK: u32 = 8u; // quads of a key at a time
const STAGED: u32 = CHUNK + 1u; // quads from row to row: odd, so that rows lie in different banks

var<workgroup> stage: array<vec4<f32>, 2u * TILE * STAGED>; // queries, keys; later values
var<workgroup> weights: array<vec4<f32>, TILE * TILE / 4u>;
var<workgroup> tops: array<f32, TILE * SIDE>;
var<workgroup> entries: array<u32, TILE>;

var<private> peak: vec4<f32>; // of the thread's four queries
var<private> total: vec4<f32>; // of its own positions
// unroll i 4
// unroll d DEPTH
var<private> acc_$i_$d: vec4<f32>;
// end
// end

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
    // unroll i 4
    let query_$i = lane / SIDE + SIDE * $iu;
    let row_$i = query_$i / BLOCK;
    if (row_$i < ROWS && first + row_$i < limit && query_$i % BLOCK < heads) {
        leave_$i(first + row_$i, head + query_$i % BLOCK, group.z, lane);
    }
    // end
}

// Softmax over up to 32 positions from `at`; `skipped` rows of the tile are of other sequences.
fn add_positions(tile: Tile, skipped: u32, seq: u32, at: u32, end: u32, lane: u32) {
    if (lane < TILE) {
        entries[lane] = entry(seq, min(at + lane, end - 1u), tile.g);
    }
    workgroupBarrier();
    let mi = lane / SIDE;
    let ni = lane % SIDE;
    // unroll i 4
    var score_$i = vec4<f32>();
    // end
    for (var chunk = 0u; chunk < QUADS; chunk += CHUNK) {
        stage_queries(tile, skipped, chunk, lane);
        stage_keys(chunk, lane);
        workgroupBarrier();
        for (var quad = 0u; quad < CHUNK; quad++) {
            let k0 = stage[(TILE + ni) * STAGED + quad];
            let k1 = stage[(TILE + SIDE + ni) * STAGED + quad];
            let k2 = stage[(TILE + 2u * SIDE + ni) * STAGED + quad];
            let k3 = stage[(TILE + 3u * SIDE + ni) * STAGED + quad];
            // unroll i 4
            let query_$i = stage[(mi + SIDE * $iu) * STAGED + quad];
            score_$i += vec4<f32>(
                dot(query_$i, k0), dot(query_$i, k1), dot(query_$i, k2), dot(query_$i, k3)
            );
            // end
        }
        workgroupBarrier();
    }
    let positions = vec4<u32>(at + 4u * ni) + vec4<u32>(0u, 1u, 2u, 3u);
    // unroll i 4
    let own_$i = (mi + SIDE * $iu) / BLOCK - skipped; // wraps for rows before
    let last_$i = u32(step[POSITION + tile.row + min(own_$i, tile.rows - 1u)]);
    let stop_$i = select(0u, min(end, last_$i + 1u), own_$i < tile.rows);
    let seen_$i = (positions >= vec4<u32>(first_seen(last_$i))) & (positions < vec4<u32>(stop_$i));
    score_$i = select(vec4<f32>(LOWEST), score_$i, seen_$i);
    tops[(mi + SIDE * $iu) * SIDE + ni] =
        max(max(score_$i.x, score_$i.y), max(score_$i.z, score_$i.w));
    // end
    workgroupBarrier();
    // unroll i 4
    var higher_$i = peak[$i];
    for (var n = 0u; n < SIDE; n++) {
        higher_$i = max(higher_$i, tops[(mi + SIDE * $iu) * SIDE + n]);
    }
    let kept_$i = exp(peak[$i] - higher_$i);
    peak[$i] = higher_$i;
    let weight_$i = select(vec4<f32>(), exp(score_$i - higher_$i), seen_$i);
    weights[(mi + SIDE * $iu) * SIDE + ni] = weight_$i;
    total[$i] = total[$i] * kept_$i + dot(weight_$i, vec4<f32>(1.0));
    // unroll d DEPTH
    acc_$i_$d *= kept_$i;
    // end
    // end
    add_values(lane);
}

fn add_values(lane: u32) {
    // As many positions as fit, a multiple of four.
    let held = min(TILE, 2u * TILE * STAGED / QUADS / 4u * 4u);
    for (var start = 0u; start < TILE; start += held) {
        let count = min(held, TILE - start);
        for (var i = lane; i < count * reads(); i += THREADS) {
            let v = value(entries[start + i / reads()] + i % reads());
            // unroll j READ_QUADS
            stage[i * READ_QUADS + $ju] = v[$j];
            // end
        }
        workgroupBarrier();
        for (var n = 0u; n < count; n += 4u) {
            // unroll i 4
            let w_$i = weights[(lane / SIDE + SIDE * $iu) * SIDE + (start + n) / 4u];
            // end
            // unroll d DEPTH
            let at_$d = n * QUADS + min(lane % SIDE + SIDE * $du, QUADS - 1u);
            // unroll k 4
            let v_$d_$k = stage[at_$d + $ku * QUADS];
            // end
            // unroll i 4
            acc_$i_$d += w_$i.x * v_$d_0 + w_$i.y * v_$d_1 + w_$i.z * v_$d_2 + w_$i.w * v_$d_3;
            // end
            // end
        }
        workgroupBarrier();
    }
}

fn stage_queries(tile: Tile, skipped: u32, chunk: u32, lane: u32) {
    for (var i = lane; i < TILE * CHUNK; i += THREADS) {
        let query = i / CHUNK;
        let quad = chunk + i % CHUNK;
        if (quad >= QUADS) {
            stage[query * STAGED + i % CHUNK] = vec4<f32>();
        } else {
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
        let to = (TILE + n % 4u * SIDE + n / 4u) * STAGED + i % width * READ_QUADS;
        var k = Read();
        if (read < reads()) {
            k = key(entries[n] + read);
        }
        // unroll j READ_QUADS
        stage[to + $ju] = k[$j];
        // end
    }
}

// unroll i 4
fn leave_$i(row: u32, head: u32, split: u32, lane: u32) {
    var sum = 0.0;
    for (var n = 0u; n < SIDE; n++) {
        sum += tops[(lane / SIDE + SIDE * $iu) * SIDE + n];
    }
    let part = ((row * HEADS + head) * SPLITS + split) * (QUADS + 1u);
    let whole = (OUT_OFFSET + row * OUT_STRIDE) / 4u + head * QUADS;
    // unroll d DEPTH
    let quad_$d = lane % SIDE + SIDE * $du;
    if (quad_$d < QUADS) {
        if (SPLITS == 1u) {
            out[whole + quad_$d] = acc_$i_$d / sum;
        } else {
            out[part + 1u + quad_$d] = acc_$i_$d;
        }
    }
    // end
    if (SPLITS > 1u && lane % SIDE == 0u) {
        out[part] = vec4<f32>(peak[$i], sum, 0.0, 0.0);
    }
}
// end
