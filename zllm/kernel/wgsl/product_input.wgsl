// x, normalised if NORM, for product_pairs: each block of 32 as integers of 16 bits, in high and
// low bytes, scaled so that its largest element is MOST. A thread has a quad of a token; the eight
// quads of a block are those of eight neighbouring lanes.
//
// There are WORDS rows of BLOCKS vec4s for each group of BATCH tokens, so that neighbouring lanes
// of a product read neighbouring blocks. First four rows a token, whose halves are quads j and
// j + 4: (high, low, high, low); then half a row a token: the scale of a block, and what its
// integers with that scale add up to.
@group(0) @binding(0) var<storage, read_write> pairs: array<vec2<u32>>;

override BLOCKS: u32; // of a row
override NORM: bool = false;
override EPS: f32 = 0.0;

const MOST = 32638.0; // 127 · 257 less what rounding may add

fn run(group: vec3<u32>, groups: vec3<u32>, lane: u32, size: u32) {
    let token = group.x;
    let quads = 8u * BLOCKS;
    var scale = 1.0;
    if (NORM) {
        var squares = 0.0;
        for (var q = lane; q < quads; q += THREADS) {
            let v = x4(token, q);
            squares += dot(v, v);
        }
        let total = reduce_sum(vec4<f32>(squares), lane, size).x;
        scale = 1.0 / sqrt(total / f32(COLUMNS) + EPS);
    }
    for (var first = group.y * THREADS; first < quads; first += groups.y * THREADS) {
        keep(token, first + lane, scale);
    }
}

fn keep(token: u32, quad: u32, scale: f32) {
    let within = quad < 8u * BLOCKS;
    var x = x4(token, select(0u, quad, within));
    if (NORM) {
        x *= scale * norm4(select(0u, quad, within));
    }
    let sizes = bitcast<vec4<u32>>(abs(x)); // as an integer NaN is the largest, and is not lost
    var most_bits = max(max(sizes.x, sizes.y), max(sizes.z, sizes.w));
    // unroll j 3
    most_bits = max(most_bits, subgroupShuffleXor(most_bits, 1u << $ju));
    // end
    let most = bitcast<f32>(most_bits);
    let low = vec4<i32>(round(x * select(MOST / most, 0.0, most < 1e-30)));
    let high = (low + 128) >> vec4<u32>(8u);
    var total = low.x + low.y + low.z + low.w;
    // unroll j 3
    total += subgroupShuffleXor(total, 1u << $ju);
    // end
    if (!within) {
        return;
    }
    let rows = token / BATCH * WORDS;
    let mine = token % BATCH;
    let block = quad / 8u;
    let q = quad % 8u;
    pairs[2u * ((rows + 4u * mine + q % 4u) * BLOCKS + block) + q / 4u] =
        vec2<u32>(pack4xI8(high), pack4xI8(low));
    if (q == 0u) {
        let unit = most / MOST;
        pairs[2u * ((rows + 4u * BATCH + mine / 2u) * BLOCKS + block) + mine % 2u] =
            bitcast<vec2<u32>>(vec2<f32>(unit, unit * f32(total)));
    }
}
