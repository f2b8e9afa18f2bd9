// Temperature, top-k, top-p, min-p and the Gumbel-max draw as zllm.sampling defines them, without a
// sort: z <= 0, so the bits of |z| order tokens from likely to unlikely, and a filter is a largest
// allowed value of them, found by bisection. Only whole sets between two neighbours matter, so
// bisection stops early.
@group(0) @binding(5) var<storage, read_write> scores: array<f32>; // [B, V] adjusted; then z
@group(0) @binding(6) var<storage, read_write> counts: array<i32>; // [lanes, V]

override TEMPERATURE: u32; // offsets of step words
override TOP_K: u32;
override TOP_P: u32;
override MIN_P: u32;
override SEED_LO: u32;
override SEED_HI: u32;
override DRAW: u32;

const UNLIKELIEST: u32 = 0x7f800000u; // bits of infinity

fn pick(seq: u32, likeliest: vec2<u32>, lane: u32) -> u32 {
    let temperature = bitcast<f32>(step[TEMPERATURE + seq]);
    let positive = step[TEMPERATURE + seq] > 0;
    if (!positive) {
        return likeliest.y;
    }
    let base = seq * VOCABULARY;
    let peak = bitcast<f32>(likeliest.x);
    for (var token = lane; token < VOCABULARY; token += THREADS) {
        scores[base + token] = max((scores[base + token] - peak) / temperature, LOWEST);
    }
    let limit = min(limit_mass(base, seq, limit_count(base, seq, lane), lane), limit_ratio(seq));
    var best = nobody();
    let keys = draw_keys(seq);
    for (var token = lane; token < VOCABULARY; token += THREADS) {
        let z = scores[base + token];
        if (rank(z) <= limit) {
            best = likelier(best, vec2<u32>(bitcast<u32>(z + gumbel(keys, token)), token));
        }
    }
    return group_likeliest(best, lane).y;
}

fn carry(seq: u32, token: u32) {
    if ((step[FLAGS + seq] & 1) != 0) {
        let at = lane_of(seq) * VOCABULARY + token;
        counts[at] = (counts[at] + 2) | 1;
    }
}

fn rank(z: f32) -> u32 {
    return bitcast<u32>(z) & 0x7fffffffu;
}

// Tokens of rank <= limit and their mass Σ e^z.
fn kept(base: u32, limit: u32, lane: u32) -> vec2<f32> {
    var sum = vec2<f32>();
    for (var token = lane; token < VOCABULARY; token += THREADS) {
        let z = scores[base + token];
        if (rank(z) <= limit) {
            sum += vec2<f32>(1.0, exp(z)); // counts stay exact: V < 2^24
        }
    }
    sums[lane] = sum;
    for (var half = THREADS / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (lane < half) {
            sums[lane] += sums[lane + half];
        }
    }
    return workgroupUniformLoad(&sums[0]);
}

// top-k: the smallest limit that keeps at least k tokens.
fn limit_count(base: u32, seq: u32, lane: u32) -> u32 {
    let k = step[TOP_K + seq];
    if (k <= 0 || u32(k) >= VOCABULARY) {
        return UNLIKELIEST;
    }
    var low = 0u;
    var high = UNLIKELIEST;
    for (var i = 0u; i < 32u; i++) {
        if (low >= high) {
            break;
        }
        let middle = low + (high - low) / 2u;
        let count = kept(base, middle, lane).x;
        if (count == f32(k)) {
            return middle;
        }
        if (count > f32(k)) {
            high = middle;
        } else {
            low = middle + 1u;
        }
    }
    return high;
}

// top-p among ranks <= limit: the smallest limit whose tokens have at least p of the mass.
fn limit_mass(base: u32, seq: u32, limit: u32, lane: u32) -> u32 {
    let p = bitcast<f32>(step[TOP_P + seq]);
    if (p >= 1.0) {
        return limit;
    }
    let all = kept(base, limit, lane);
    var low = 0u;
    var high = limit;
    var below = 0.0; // tokens known to be too few
    var above = all.x; // tokens known to be enough
    for (var i = 0u; i < 32u; i++) {
        if (low >= high || below + 1.0 >= above) {
            break;
        }
        let middle = low + (high - low) / 2u;
        let part = kept(base, middle, lane);
        if (part.x > 0.0 && part.y >= p * all.y) {
            high = middle;
            above = part.x;
        } else {
            low = middle + 1u;
            below = part.x;
        }
    }
    return high;
}

// min-p: z >= log p; the likeliest token always stays.
fn limit_ratio(seq: u32) -> u32 {
    let p = bitcast<f32>(step[MIN_P + seq]);
    if (p <= 0.0) {
        return UNLIKELIEST;
    }
    return rank(min(ln(p), 0.0));
}

fn draw_keys(seq: u32) -> vec2<u32> {
    let position = u32(step[DRAW + seq]);
    let first = mix(mix(position ^ u32(step[SEED_LO + seq])) ^ u32(step[SEED_HI + seq]));
    return vec2<u32>(first, mix(first + 0x9e3779b9u));
}

// -log(-log1p(-v)), v uniform in (0, 1).
fn gumbel(keys: vec2<u32>, token: u32) -> f32 {
    let bits = mix(mix(token ^ keys.x) ^ keys.y) >> 9u;
    let v = (f32(bits) + 0.5) * 0x1p-23;
    var tail = 0.0;
    if (v < 0x1p-5) {
        tail = (((((v / 6.0 + 0.2) * v + 0.25) * v + 1.0 / 3.0) * v + 0.5) * v + 1.0) * v;
    } else {
        tail = -ln(1.0 - min(v, 1.0 - 0x1p-24));
    }
    return -ln(tail);
}

// "lowbias32" (Wellons): shifts 16 15 16.
fn mix(bits: u32) -> u32 {
    var x = bits;
    x ^= x >> 16u;
    x *= 0x7feb352du;
    x ^= x >> 15u;
    x *= 0x846ca68bu;
    return x ^ (x >> 16u);
}
