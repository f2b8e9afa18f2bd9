// x, normalised if NORM, for product_pairs: each block of 32 as integers of 16 bits, in high and
// low bytes, scaled so that its largest element is MOST. A thread has a block of a token.
//
// Slots of SLOT vec4s, one a block, for each group of BATCH tokens. In a slot each token has four
// vec4s, whose halves are quads j and j + 4: (high, low, high, low); behind them a vec2 a token:
// the scale, and what the integers with their scale add up to.
@group(0) @binding(0) var<storage, read_write> pairs: array<vec2<u32>>;

override BLOCKS: u32; // of a row
override NORM: bool = false;
override EPS: f32 = 0.0;

const MOST = 32638.0; // 127 · 257 less what rounding may add

fn run(group: vec3<u32>, groups: vec3<u32>, lane: u32, size: u32) {
    let token = group.x;
    var scale = 1.0;
    if (NORM) {
        var squares = 0.0;
        for (var b = lane; b < BLOCKS; b += THREADS) {
            // unroll k 8
            let x_$k = x4(token, 8u * b + $ku);
            // end
            // unroll k 8
            squares += dot(x_$k, x_$k);
            // end
        }
        let total = reduce_sum(vec4<f32>(squares), lane, size).x;
        scale = 1.0 / sqrt(total / f32(COLUMNS) + EPS);
    }
    for (var b = group.y * THREADS + lane; b < BLOCKS; b += groups.y * THREADS) {
        keep(token, b, scale);
    }
}

fn keep(token: u32, block: u32, scale: f32) {
    var most_bits = 0u; // as an integer NaN is the largest, and is not lost
    // unroll k 8
    var x_$k = x4(token, 8u * block + $ku);
    if (NORM) {
        x_$k *= scale * norm4(8u * block + $ku);
    }
    let bits_$k = bitcast<vec4<u32>>(abs(x_$k));
    most_bits = max(most_bits, max(max(bits_$k.x, bits_$k.y), max(bits_$k.z, bits_$k.w)));
    // end
    let most = bitcast<f32>(most_bits);
    let factor = select(MOST / most, 0.0, most < 1e-30);
    let slot = 2u * SLOT * (token / BATCH * BLOCKS + block);
    let mine = slot + 8u * (token % BATCH);
    var total = vec4<i32>();
    // unroll k 8
    let n_$k = vec4<i32>(round(x_$k * factor));
    total += n_$k;
    let high_$k = (n_$k + 128) >> vec4<u32>(8u);
    pairs[mine + 2u * ($ku % 4u) + $ku / 4u] = vec2<u32>(pack4xI8(high_$k), pack4xI8(n_$k));
    // end
    let unit = most / MOST;
    let sum = unit * f32(total.x + total.y + total.z + total.w);
    pairs[slot + 8u * BATCH + token % BATCH] = bitcast<vec2<u32>>(vec2<f32>(unit, sum));
}
