// Stream k of a row becomes post[k] f + Σ_j comb[j, k] x[j]. A thread owns a column of all streams.
@group(0) @binding(0) var<storage, read> f: array<f32>;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read> post: array<f32>;
@group(0) @binding(3) var<storage, read> comb: array<f32>;
@group(0) @binding(4) var<storage, read_write> out: array<f32>;

override ROWS: u32;
override WIDTH: u32;
override F_OFFSET: u32;
override F_STRIDE: u32;
override X_OFFSET: u32;
override X_STRIDE: u32;
override POST_OFFSET: u32;
override POST_STRIDE: u32;
override COMB_OFFSET: u32;
override COMB_STRIDE: u32;
override OUT_OFFSET: u32;
override OUT_STRIDE: u32;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let column = id.x;
    if (column >= WIDTH) {
        return;
    }
    for (var row = id.y; row < ROWS; row += groups.y) {
        let own = f[F_OFFSET + row * F_STRIDE + column];
        let mix = COMB_OFFSET + row * COMB_STRIDE;
        // unroll j STREAMS
        let x_$j = x[X_OFFSET + row * X_STRIDE + $ju * WIDTH + column];
        let post_$j = post[POST_OFFSET + row * POST_STRIDE + $ju];
        // unroll k STREAMS
        let comb_$j_$k = comb[mix + $ju * STREAMS + $ku];
        // end
        // end
        // unroll k STREAMS
        var sum_$k = post_$k * own;
        // unroll j STREAMS
        sum_$k += comb_$j_$k * x_$j;
        // end
        out[OUT_OFFSET + row * OUT_STRIDE + $ku * WIDTH + column] = sum_$k;
        // end
    }
}
