// A block-diagonal product: group g of a row's columns times group g of the matrix's rows. A unit
// is a row of x and one of its RUNS. Named as in experts.wgsl, whose kernels run this too.
@group(0) @binding(3) var<storage, read> step: array<i32>;
@group(0) @binding(4) var<storage, read_write> out: array<f32>;

const NORM: bool = false; // of x, before the product
const GATED: bool = false;

override ROWS: u32; // results of a unit
override RUNS: u32; // groups of a dispatch
override GROUP_ROWS: u32; // of the matrix, and results of a row from group to group
override BANK_ROW: u32; // where the first group's rows begin
override X_GROUPS: u32; // x lies in runs of a group's columns: so many from row to row
override VALID_ROWS: u32; // offset of a step word
override OUT_OFFSET: u32;
override OUT_STRIDE: u32;

fn units() -> u32 {
    return u32(step[VALID_ROWS]) * RUNS;
}

fn pairs_of_unit() -> u32 {
    return 1u;
}

fn expert_of(pair: u32) -> u32 {
    return pair % RUNS;
}

fn in_bank(expert: u32) -> bool {
    return true;
}

fn has_results(unit: u32) -> bool {
    return true;
}

fn weight_of(pair: u32) -> f32 {
    return 1.0;
}

fn source_row(pair: u32) -> u32 {
    return pair / RUNS * X_GROUPS + pair % RUNS;
}

fn bank_row(expert: u32, row: u32, up: u32) -> u32 {
    return BANK_ROW + expert * GROUP_ROWS + row;
}

fn store(unit: u32, row: u32, value: f32, partner: f32) {
    out[OUT_OFFSET + unit / RUNS * OUT_STRIDE + unit % RUNS * GROUP_ROWS + row] = value;
}
