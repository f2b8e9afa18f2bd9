// Software adapters that gather lane by lane: the lanes share the positions of BLOCK query heads
// which read the same keys, and each reads a key once for all of them, in straight-line text, for
// an index that is no constant is a gather as well. Else as attend_lanes.
override SPLITS: u32;

fn attend(unit: u32, lane: u32, lanes: u32) {
    let split = unit % SPLITS;
    let blocks = HEADS / BLOCK;
    let row = unit / SPLITS / blocks;
    let head = unit / SPLITS % blocks * BLOCK;
    if (row >= u32(step[VALID_ROWS])) {
        return;
    }
    let g = head * KV_HEADS / HEADS;
    let seq = u32(step[SEQ + row]);
    let last = u32(step[POSITION + row]);
    let dealt = deal(first_seen(last), last + 1u, lanes, split, SPLITS);
    // unroll h BLOCK
    let start_$h = begin(head + $hu, split == 0u && lane == 0u);
    var peak_$h = start_$h.x;
    var total_$h = start_$h.y;
    // end
    var query: array<vec4<f32>, BLOCK * READS * READ_QUADS>;
    var acc: array<vec4<f32>, BLOCK * READS * READ_QUADS>;
    let origin = (Q_OFFSET + row * Q_STRIDE) / 4u + head * QUADS;
    for (var i = 0u; i < BLOCK * QUADS; i++) {
        query[i] = SCALE * q[origin + i];
    }
    for (var p = dealt.x + lane; p < dealt.y; p += lanes) {
        let at = entry(seq, p, g);
        // unroll h BLOCK
        var score_$h = 0.0;
        // end
        // unroll i READS
        let key_$i = key(at + $iu);
        // unroll j READ_QUADS
        // unroll h BLOCK
        score_$h += dot(query[($h * READS + $i) * READ_QUADS + $j], key_$i[$j]);
        // end
        // end
        // end
        // unroll h BLOCK
        let higher_$h = max(peak_$h, score_$h);
        let kept_$h = exp(peak_$h - higher_$h);
        let weight_$h = exp(score_$h - higher_$h);
        peak_$h = higher_$h;
        total_$h = total_$h * kept_$h + weight_$h;
        // end
        // unroll i READS
        let value_$i = value(at + $iu);
        // unroll j READ_QUADS
        // unroll h BLOCK
        acc[($h * READS + $i) * READ_QUADS + $j] =
            acc[($h * READS + $i) * READ_QUADS + $j] * kept_$h + weight_$h * value_$i[$j];
        // end
        // end
        // end
    }
    // unroll h BLOCK
    let highest_$h = lanes_max(peak_$h);
    let share_$h = exp(peak_$h - highest_$h);
    let sum_$h = lanes_sum(vec4<f32>(total_$h * share_$h)).x;
    var to_$h = (OUT_OFFSET + row * OUT_STRIDE) / 4u + (head + $hu) * QUADS;
    var scale_$h = share_$h / sum_$h;
    if (SPLITS > 1u) {
        to_$h = ((row * HEADS + head + $hu) * SPLITS + split) * (QUADS + 1u);
        scale_$h = share_$h;
        if (lane == 0u) {
            out[to_$h] = vec4<f32>(highest_$h, sum_$h, 0.0, 0.0);
        }
        to_$h += 1u;
    }
    for (var i = 0u; i < QUADS; i++) {
        let quad = lanes_sum(acc[$hu * QUADS + i] * scale_$h);
        if (lane == 0u) {
            out[to_$h + i] = quad;
        }
    }
    // end
}
