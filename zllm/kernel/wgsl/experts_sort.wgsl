// Pairs of a row and one of its experts in the order of their experts, and tiles of at most TOKENS
// pairs of one expert. One workgroup. `tiles` holds their number, then of each its expert and where
// in the order it begins and ends; the order follows at ORDER.
@group(0) @binding(0) var<storage, read> ids: array<u32>;
@group(0) @binding(1) var<storage, read> step: array<i32>;
@group(0) @binding(2) var<storage, read_write> tiles: array<u32>;

override EXPERTS: u32; // at most MOST
override CHOSEN: u32; // pairs of a row
override TOKENS: u32;
override ORDER: u32;
override VALID_ROWS: u32; // offset of a step word
override IDS_OFFSET: u32;
override IDS_STRIDE: u32;

const MOST: u32 = 1024u;
const THREADS: u32 = 256u;

var<workgroup> counts: array<atomic<u32>, MOST>; // pairs of each expert, then where its next goes
var<workgroup> sums: array<vec2<u32>, THREADS>; // pairs and tiles of the lanes up to this one

@compute @workgroup_size(THREADS)
fn main(@builtin(local_invocation_index) lane: u32) {
    let pairs = u32(step[VALID_ROWS]) * CHOSEN;
    for (var i = lane; i < EXPERTS; i += THREADS) {
        atomicStore(&counts[i], 0u);
    }
    workgroupBarrier();
    for (var pair = lane; pair < pairs; pair += THREADS) {
        let expert = expert_of(pair);
        if (expert < EXPERTS) {
            atomicAdd(&counts[expert], 1u);
        }
    }
    workgroupBarrier();
    let own = (EXPERTS + THREADS - 1u) / THREADS; // experts of a lane
    let end = min((lane + 1u) * own, EXPERTS);
    var sum = vec2<u32>();
    for (var i = lane * own; i < end; i++) {
        let count = atomicLoad(&counts[i]);
        sum += vec2<u32>(count, (count + TOKENS - 1u) / TOKENS);
    }
    var at = sums_before(sum, lane);
    if (lane == THREADS - 1u) {
        tiles[0] = at.y + sum.y;
    }
    for (var i = lane * own; i < end; i++) {
        let last = at.x + atomicLoad(&counts[i]);
        atomicStore(&counts[i], at.x);
        while (at.x < last) {
            let next = min(at.x + TOKENS, last);
            tiles[1u + 3u * at.y] = i;
            tiles[2u + 3u * at.y] = at.x;
            tiles[3u + 3u * at.y] = next;
            at = vec2<u32>(next, at.y + 1u);
        }
    }
    workgroupBarrier();
    for (var pair = lane; pair < pairs; pair += THREADS) {
        let expert = expert_of(pair);
        if (expert < EXPERTS) {
            tiles[ORDER + atomicAdd(&counts[expert], 1u)] = pair;
        }
    }
}

fn expert_of(pair: u32) -> u32 {
    return ids[IDS_OFFSET + pair / CHOSEN * IDS_STRIDE + pair % CHOSEN];
}

fn sums_before(v: vec2<u32>, lane: u32) -> vec2<u32> {
    var sum = v;
    sums[lane] = sum;
    for (var distance = 1u; distance < THREADS; distance *= 2u) {
        workgroupBarrier();
        var other = vec2<u32>();
        if (lane >= distance) {
            other = sums[lane - distance];
        }
        workgroupBarrier();
        sum += other;
        sums[lane] = sum;
    }
    return sum - v;
}
