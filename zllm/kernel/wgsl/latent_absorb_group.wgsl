// GPUs: a workgroup owns eight parts of a head for four tokens; 32 threads share the rows of U_h.
const PARTS_HERE: u32 = 8u;
const SLICES: u32 = 32u;

var<workgroup> slices: array<mat2x4<f32>, 256>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let token = 4u * group.y;
    if (FIRST_ROW + token >= u32(step[VALID_ROWS])) {
        return;
    }
    let head = group.z;
    let part = PARTS_HERE * group.x + lane % PARTS_HERE;
    var sums: Sums;
    if (part < BLOCKS * PARTS) {
        sums = absorb(token, head, part, lane / PARTS_HERE, SLICES);
    }
    join(token, head, part, lane, sums.a);
    if (TOKENS > 1u) {
        join(token + 1u, head, part, lane, sums.b);
        join(token + 2u, head, part, lane, sums.c);
        join(token + 3u, head, part, lane, sums.d);
    }
    let rotated = QUADS - RANK_QUADS;
    if (group.x == 0u) {
        for (var i = lane; i < 4u * rotated; i += 256u) {
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
