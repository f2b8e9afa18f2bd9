// The keys of each row's largest scores, of equals the lower ones, in ascending order and -1 padded
// (zllm.attention.dsa.best). One workgroup a row. A radix select: three passes over the scores find
// the bits of the lowest that is chosen, a fourth numbers the chosen ones.
@group(0) @binding(0) var<storage, read> scores: array<vec4<f32>>; // [ROWS, SCORES_STRIDE]
@group(0) @binding(1) var<storage, read> step: array<i32>;
@group(0) @binding(2) var<storage, read_write> out: array<i32>;

override THREADS: u32; // a power of two
override ROWS: u32; // of this dispatch, from BEGIN on
override BEGIN: u32;
override SCORES_STRIDE: u32;
override MOST_CHOSEN: u32;
override RATE: u32; // tokens of a key
override EXPAND: bool; // write a chosen key's tokens, not its number
override TAIL: bool; // then also the tokens of the key that is not complete yet
override VALID_ROWS: u32; // offsets of step words
override POSITION: u32;
override OUT_OFFSET: u32;
override OUT_STRIDE: u32;
override OUT_COLUMNS: u32;

const BINS: u32 = 2048u;

var<workgroup> bins: array<atomic<u32>, BINS>;
var<workgroup> counts: array<vec2<u32>, 256>; // scores above the lowest chosen one, and equal to it
var<workgroup> found: vec2<u32>; // a digit, and how many scores of it are chosen

@compute @workgroup_size(THREADS)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    for (var i = group.x; i < ROWS; i += groups.x) {
        let row = BEGIN + i;
        if (row < u32(step[VALID_ROWS])) {
            let position = u32(step[POSITION + row]);
            let candidates = (position + 1u) / RATE;
            let to = OUT_OFFSET + row * OUT_STRIDE;
            if (candidates <= MOST_CHOSEN) {
                for (var key = lane; key < candidates; key += THREADS) {
                    put(to, key, key);
                }
            } else {
                choose(i * SCORES_STRIDE / 4u, candidates, to, lane);
            }
            finish(to, position, candidates, lane);
        }
    }
}

fn put(to: u32, rank: u32, key: u32) {
    if (!EXPAND) {
        out[to + rank] = i32(key);
        return;
    }
    for (var i = 0u; i < RATE; i++) {
        out[to + rank * RATE + i] = i32(key * RATE + i);
    }
}

// What follows the chosen ones.
fn finish(to: u32, position: u32, candidates: u32, lane: u32) {
    var used = min(candidates, MOST_CHOSEN) * select(1u, RATE, EXPAND);
    if (TAIL) {
        let first = candidates * RATE;
        let open = position + 1u - first;
        for (var i = lane; i < open; i += THREADS) {
            out[to + used + i] = i32(first + i);
        }
        used += open;
    }
    for (var i = used + lane; i < OUT_COLUMNS; i += THREADS) {
        out[to + i] = -1;
    }
}

fn choose(start: u32, candidates: u32, to: u32, lane: u32) {
    var prefix = 0u; // the upper bits of the lowest chosen score
    var left = MOST_CHOSEN; // how many are chosen of those that share them
    let last = (candidates - 1u) / 4u;
    for (var turn = 0u; turn < 3u; turn++) {
        for (var bin = lane; bin < BINS; bin += THREADS) {
            atomicStore(&bins[bin], 0u);
        }
        workgroupBarrier();
        // Four loads at once: a lone workgroup waits for memory.
        for (var quad = lane; 4u * quad < candidates; quad += 4u * THREADS) {
            let a = order(scores[start + quad]);
            let b = order(scores[start + min(quad + THREADS, last)]);
            let c = order(scores[start + min(quad + 2u * THREADS, last)]);
            let d = order(scores[start + min(quad + 3u * THREADS, last)]);
            count_digits(a, 4u * quad, candidates, turn, prefix);
            count_digits(b, 4u * (quad + THREADS), candidates, turn, prefix);
            count_digits(c, 4u * (quad + 2u * THREADS), candidates, turn, prefix);
            count_digits(d, 4u * (quad + 3u * THREADS), candidates, turn, prefix);
        }
        workgroupBarrier();
        find_digit(left, lane);
        workgroupBarrier();
        prefix = (prefix << select(11u, 10u, turn == 2u)) | found.x;
        left = found.y;
        workgroupBarrier();
    }
    number(start, candidates, to, prefix, left, lane);
}

// Of the four candidates from `first` on those whose upper bits are `prefix`.
fn count_digits(v: vec4<u32>, first: u32, candidates: u32, turn: u32, prefix: u32) {
    let shift = select(select(0u, 10u, turn == 1u), 21u, turn == 0u);
    let bits = select(11u, 10u, turn == 2u);
    for (var i = 0u; i < 4u; i++) {
        if (first + i < candidates && (turn == 0u || v[i] >> (shift + bits) == prefix)) {
            atomicAdd(&bins[(v[i] >> shift) & ((1u << bits) - 1u)], 1u);
        }
    }
}

// Numbers that compare as the scores do; -0 is 0.
fn order(v: vec4<f32>) -> vec4<u32> {
    let bits = bitcast<vec4<u32>>(v);
    let sign = vec4<u32>(0x80000000u);
    let negative = bits > sign;
    return select((bits & ~sign) | sign, ~bits, negative);
}

// The digit of the `left`th largest: bins count from the highest digit down.
fn find_digit(left: u32, lane: u32) {
    let own = BINS / THREADS; // bins of a lane
    let high = BINS - lane * own;
    var sum = 0u;
    for (var i = 1u; i <= own; i++) {
        sum += atomicLoad(&bins[high - i]);
    }
    var before = sums_before(vec2<u32>(sum, 0u), lane).x;
    if (before >= left || before + sum < left) {
        return;
    }
    for (var i = 1u; i <= own; i++) {
        let count = atomicLoad(&bins[high - i]);
        if (before + count >= left) {
            found = vec2<u32>(high - i, left - before);
            return;
        }
        before += count;
    }
}

// Sum of what the lanes before this one hold.
fn sums_before(v: vec2<u32>, lane: u32) -> vec2<u32> {
    var sum = v;
    counts[lane] = sum;
    for (var distance = 1u; distance < THREADS; distance *= 2u) {
        workgroupBarrier();
        var other = vec2<u32>();
        if (lane >= distance) {
            other = counts[lane - distance];
        }
        workgroupBarrier();
        sum += other;
        counts[lane] = sum;
    }
    return sum - v;
}

// Each lane counts a run of candidates, then writes the chosen ones behind those of the lanes
// before it.
fn number(start: u32, candidates: u32, to: u32, lowest: u32, left: u32, lane: u32) {
    let quads = (candidates + 4u * THREADS - 1u) / (4u * THREADS); // of a lane
    let end = min((lane + 1u) * quads, (candidates + 3u) / 4u);
    var count = vec2<u32>();
    for (var quad = lane * quads; quad < end; quad++) {
        let ordered = order(scores[start + quad]);
        for (var i = 0u; i < min(4u, candidates - 4u * quad); i++) {
            count += vec2<u32>(u32(ordered[i] > lowest), u32(ordered[i] == lowest));
        }
    }
    var before = sums_before(count, lane);
    for (var quad = lane * quads; quad < end; quad++) {
        let ordered = order(scores[start + quad]);
        for (var i = 0u; i < min(4u, candidates - 4u * quad); i++) {
            let above = ordered[i] > lowest;
            let level = ordered[i] == lowest;
            if (above || (level && before.y < left)) {
                put(to, before.x + min(before.y, left), 4u * quad + i);
            }
            before += vec2<u32>(u32(above), u32(level));
        }
    }
    workgroupBarrier();
}
