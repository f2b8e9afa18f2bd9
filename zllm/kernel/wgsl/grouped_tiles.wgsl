// A block-diagonal product as grouped.wgsl, in tiles of TILE_PAIRS rows of x. Named as in
// experts_sorted.wgsl, whose kernels run this too.
@group(0) @binding(3) var<storage, read> step: array<i32>;
@group(0) @binding(4) var<storage, read_write> out: array<f32>;

const NORM: bool = false; // of x, before the product
const GATED: bool = false;

override ROWS: u32; // results of a row of x and a group
override RUNS: u32; // groups of a dispatch
override GROUP_ROWS: u32; // of the matrix, and results of a row from group to group
override BANK_ROW: u32; // where the first group's rows begin
override X_GROUPS: u32; // x lies in runs of a group's columns: so many from row to row
override TILE_PAIRS: u32;
override VALID_ROWS: u32; // offset of a step word
override OUT_OFFSET: u32;
override OUT_STRIDE: u32;

fn tiles_of_group() -> u32 {
    return (u32(step[VALID_ROWS]) + TILE_PAIRS - 1u) / TILE_PAIRS;
}

fn tile_count() -> u32 {
    return tiles_of_group() * RUNS;
}

// (group, begin, end)
fn tile_at(i: u32) -> vec3<u32> {
    let begin = i % tiles_of_group() * TILE_PAIRS;
    return vec3<u32>(
        i / tiles_of_group(), begin, min(begin + TILE_PAIRS, u32(step[VALID_ROWS]))
    );
}

fn in_bank(expert: u32) -> bool {
    return true;
}

fn source_row(expert: u32, place: u32) -> u32 {
    return place * X_GROUPS + expert;
}

fn bank_row(expert: u32, row: u32, up: u32) -> u32 {
    return BANK_ROW + expert * GROUP_ROWS + row;
}

fn store(expert: u32, place: u32, row: u32, value: f32, partner: f32) {
    out[OUT_OFFSET + place * OUT_STRIDE + expert * GROUP_ROWS + row] = value;
}
