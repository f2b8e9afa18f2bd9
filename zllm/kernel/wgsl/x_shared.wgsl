// The first four lanes of a subgroup read a quad of x each and hand it to all: CPUs gather lane by
// lane, even from one address, so a load costs them as much as eight products.
struct Sixteen {
    a: vec4<f32>,
    b: vec4<f32>,
    c: vec4<f32>,
    d: vec4<f32>,
    sum: f32, // without the factor
    squares: f32, // of x before the norm
}

// Four quads of x times the factor; times the norm weight too if the product normalises.
fn sixteen(row: u32, quad: u32, factor: vec4<f32>) -> Sixteen {
    let own = quad + lane % 4u;
    var v = x4(row, own);
    var sums = vec2<f32>();
    if (NORM) {
        sums.y = dot(v, v);
        v *= norm4(own);
    }
    sums.x = dot(v, vec4<f32>(1.0));
    sums = subgroupAdd(select(vec2<f32>(), sums, lane < 4u));
    v *= factor;
    return Sixteen(
        subgroupBroadcast(v, 0u), subgroupBroadcast(v, 1u),
        subgroupBroadcast(v, 2u), subgroupBroadcast(v, 3u),
        sums.x, sums.y
    );
}
