// GPUs: a workgroup owns eight parts of a head for TILE tokens; 32 threads share the rows of U_h,
// four of them on their way at a time.
const PARTS_HERE: u32 = 8u;
const SLICES: u32 = 32u;

var<workgroup> slices: array<mat2x4<f32>, 256>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let token = TILE * group.y;
    if (FIRST_ROW + token >= u32(step[VALID_ROWS])) {
        return;
    }
    let head = group.z;
    let part = PARTS_HERE * group.x + lane % PARTS_HERE;
    let matrix_row = head * (NOPE + VALUE);
    // unroll t TILE
    let at_$t = q_start(token + $tu, head);
    var sum_$t = mat2x4<f32>();
    // end
    if (part < BLOCKS * PARTS) {
        for (var first = lane / PARTS_HERE; first < NOPE; first += 4u * SLICES) {
            // unroll k 4
            let i_$k = min(first + $ku * SLICES, NOPE - 1u);
            let w_$k = decode(row_start(matrix_row + i_$k), part);
            // unroll t TILE
            let q_$k_$t = select(0.0, q[at_$t + i_$k], first + $ku * SLICES < NOPE);
            // end
            // end
            // unroll k 4
            // unroll t TILE
            sum_$t += w_$k * q_$k_$t;
            // end
            // end
        }
    }
    // unroll t TILE
    join(token + $tu, head, part, lane, sum_$t);
    // end
    let rotated = QUADS - RANK_QUADS;
    if (group.x == 0u) {
        for (var i = lane; i < TILE * rotated; i += 256u) {
            copy_rotated(token + i / rotated, head, i % rotated);
        }
    }
}

fn join(token: u32, head: u32, part: u32, lane: u32, sum: mat2x4<f32>) {
    slices[lane] = sum;
    for (var half = SLICES / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (lane < half * PARTS_HERE) {
            slices[lane] += slices[lane + half * PARTS_HERE];
        }
    }
    if (lane < PARTS_HERE && part < BLOCKS * PARTS) {
        let quads = part_quads(part);
        store_quad(token, head, quads.x, slices[lane][0]);
        store_quad(token, head, quads.y, slices[lane][1]);
    }
    workgroupBarrier();
}
