// What every matrix product shares: sizes, the fused norm, and where results go.
@group(0) @binding(3) var<storage, read> bias: array<f32>;
@group(0) @binding(4) var<storage, read> residual: array<f32>;
@group(0) @binding(5) var<storage, read_write> out: array<f32>;

override ROWS: u32; // results per token: rows of the bank, or half of them if GATED
override TOKENS: u32; // rows of x
override FIRST_ROW: u32 = 0u; // column of `out` where row 0 of the bank goes
override OUT_OFFSET: u32 = 0u;
override OUT_STRIDE: u32;
override RESIDUAL_OFFSET: u32 = 0u;
override RESIDUAL_STRIDE: u32 = 0u;
override HAS_BIAS: bool = false;
override HAS_RESIDUAL: bool = false;
override NORM: bool = false; // x is divided by its root mean square and multiplied by `norm` first
override EPS: f32 = 0.0;
override FACTOR: f32 = 1.0; // of the product and its bias
override GATED: bool = false; // rows [0, ROWS) are gates, rows [ROWS, 2·ROWS) what they multiply

fn norm_scale(squares: f32) -> f32 {
    if (!NORM) {
        return 1.0;
    }
    return 1.0 / sqrt(squares / f32(COLUMNS) + EPS);
}

fn store(token: u32, row: u32, value: f32) {
    var y = value;
    if (HAS_BIAS) {
        y += bias[FIRST_ROW + row];
    }
    y *= FACTOR;
    if (HAS_RESIDUAL) {
        y += residual[RESIDUAL_OFFSET + token * RESIDUAL_STRIDE + FIRST_ROW + row];
    }
    out[OUT_OFFSET + token * OUT_STRIDE + FIRST_ROW + row] = y;
}

fn store_gated(token: u32, row: u32, gate: f32, up: f32) {
    var g = gate;
    var u = up;
    if (HAS_BIAS) {
        g += bias[row];
        u += bias[ROWS + row];
    }
    out[OUT_OFFSET + token * OUT_STRIDE + row] = activate(g, u);
}
