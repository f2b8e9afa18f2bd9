// GPUs: a workgroup owns four rows of a head and TILE tokens; each decoded weight meets all.
fn run(group: vec3<u32>, groups: vec3<u32>, lane: u32, size: u32) {
    let token = TILE * group.y;
    if (!valid(token)) {
        return;
    }
    let row = 4u * group.x;
    let head = group.z;
    // unroll r 4
    let start_$r = value_start(head, row + $ru);
    // end
    // unroll t TILE
    let x_$t = x_row(token + $tu, head);
    var acc_$t = vec4<f32>(); // one component a row
    // end
    for (var p = lane; p < BLOCKS * PARTS; p += THREADS) {
        let quads = part_quads(p);
        // unroll r 4
        let w_$r = decode(start_$r, p);
        // end
        // unroll t TILE
        let a_$t = x4(x_$t, quads.x);
        let b_$t = x4(x_$t, quads.y);
        acc_$t += vec4<f32>(
            dot(w_0[0], a_$t) + dot(w_0[1], b_$t), dot(w_1[0], a_$t) + dot(w_1[1], b_$t),
            dot(w_2[0], a_$t) + dot(w_2[1], b_$t), dot(w_3[0], a_$t) + dot(w_3[1], b_$t)
        );
        // end
    }
    // unroll t TILE
    store_four(token + $tu, head, row, reduce_sum(acc_$t, lane, size), lane);
    // end
}

fn store_four(token: u32, head: u32, row: u32, y: vec4<f32>, lane: u32) {
    if (lane < 4u) {
        store(token, head, row + lane, y[lane]);
    }
}
