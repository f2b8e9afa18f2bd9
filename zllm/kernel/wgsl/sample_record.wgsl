// Second pass, one workgroup a sequence: pick the token, write the record and carry the token on.
@group(0) @binding(2) var<storage, read_write> runs: array<Run>;
@group(0) @binding(3) var<storage, read_write> carry_token: array<i32>;
@group(0) @binding(4) var<storage, read_write> records: array<i32>;

override THREADS: u32; // a power of two
override LOGPROBS: bool;
override TOP: u32;
override RECORD_WORDS: u32;
override RECORD_TOKEN: u32; // places in a record
override RECORD_LOGPROB: u32;
override RECORD_FLAGS: u32;
override RECORD_TOP: u32;

var<workgroup> pairs: array<vec2<u32>, 256>;
var<workgroup> sums: array<vec2<f32>, 256>;

@compute @workgroup_size(THREADS)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let seq = group.x;
    if (seq >= u32(step[VALID_SEQS])) {
        return;
    }
    var mine = Run(nobody(), nobody(), 0.0, 0u);
    let first = seq * CANDIDATES;
    for (var i = lane; i < CANDIDATES; i += THREADS) {
        let run = runs[first + i];
        mine.best = likelier(mine.best, run.best);
        mine.adjusted = likelier(mine.adjusted, run.adjusted);
        mine.flags |= run.flags;
    }
    let best = group_likeliest(mine.best, lane);
    let flags = u32(group_sum(vec2<f32>(f32(mine.flags), 0.0), lane).x > 0.0);
    let likeliest = group_likeliest(mine.adjusted, lane);
    let token = min(pick(seq, likeliest, lane), VOCABULARY - 1u);
    var log_total = 0.0;
    if (LOGPROBS) {
        var sum = 0.0;
        for (var i = lane; i < CANDIDATES; i += THREADS) {
            let run = runs[first + i];
            sum += run.sum * exp(bitcast<f32>(run.best.x) - bitcast<f32>(best.x));
        }
        log_total = bitcast<f32>(best.x) + ln(group_sum(vec2<f32>(sum, 0.0), lane).x);
    }
    let record = seq * RECORD_WORDS;
    if (lane == 0u) {
        records[record + RECORD_TOKEN] = i32(token);
        let logprob = select(0.0, logit(seq, token) - log_total, LOGPROBS);
        records[record + RECORD_LOGPROB] = bitcast<i32>(logprob);
        records[record + RECORD_FLAGS] = i32(flags);
        carry_token[lane_of(seq)] = i32(token);
        carry(seq, token);
    }
    for (var n = 0u; n < TOP; n++) {
        let next = group_likeliest(own_best(first, lane), lane);
        if (lane == 0u) {
            let found = next.y != NONE;
            records[record + RECORD_TOP + n] = select(0, i32(next.y), found);
            records[record + RECORD_TOP + TOP + n] =
                select(0, bitcast<i32>(bitcast<f32>(next.x) - log_total), found);
        }
        if (next.y != NONE && next.y % CANDIDATES % THREADS == lane) {
            step_down(seq, first + next.y % CANDIDATES, next);
        }
    }
}

fn own_best(first: u32, lane: u32) -> vec2<u32> {
    var best = nobody();
    for (var i = lane; i < CANDIDATES; i += THREADS) {
        best = likelier(best, runs[first + i].best);
    }
    return best;
}

// The run's likeliest token after `taken`. Runs are read and written by one thread each.
fn step_down(seq: u32, run: u32, taken: vec2<u32>) {
    var best = nobody();
    for (var token = taken.y % CANDIDATES; token < VOCABULARY; token += CANDIDATES) {
        let next = vec2<u32>(bitcast<u32>(logit(seq, token)), token);
        let x = bitcast<f32>(taken.x);
        let y = bitcast<f32>(next.x);
        if (y < x || (y == x && token > taken.y)) {
            best = likelier(best, next);
        }
    }
    runs[run].best = best;
}

fn group_likeliest(v: vec2<u32>, lane: u32) -> vec2<u32> {
    pairs[lane] = v;
    for (var half = THREADS / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (lane < half) {
            pairs[lane] = likelier(pairs[lane], pairs[lane + half]);
        }
    }
    workgroupBarrier();
    let best = pairs[0];
    workgroupBarrier();
    return best;
}

fn group_sum(v: vec2<f32>, lane: u32) -> vec2<f32> {
    sums[lane] = v;
    for (var half = THREADS / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (lane < half) {
            sums[lane] += sums[lane + half];
        }
    }
    workgroupBarrier();
    let total = sums[0];
    workgroupBarrier();
    return total;
}
