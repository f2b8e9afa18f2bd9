// Products with the chosen experts, pairs in the order of their experts (experts_sort.wgsl).
// GATED: results are activate(gate, up), in that order; else weight · (product + bias), where the
// pair is.
@group(0) @binding(3) var<storage, read> bias: array<f32>;
@group(0) @binding(4) var<storage, read> tiles: array<u32>;
@group(0) @binding(5) var<storage, read> weights: array<f32>;
@group(0) @binding(6) var<storage, read_write> out: array<f32>;

const NORM: bool = false; // of x, before the product

override ROWS: u32; // results of a pair
override CHOSEN: u32; // pairs of a row
override GATED: bool;
override INTERLEAVED: bool; // gate and up rows alternate, else an expert's gate rows come first
override HAS_BIAS: bool;
override FIRST_EXPERT: u32; // of the bank: tiles of other banks' experts are left alone
override SOME_EXPERTS: u32;
override ORDER: u32;
override WEIGHTS_OFFSET: u32;
override WEIGHTS_STRIDE: u32;
override OUT_OFFSET: u32;
override OUT_STRIDE: u32;

fn tile_count() -> u32 {
    return tiles[0];
}

// (expert, begin, end)
fn tile_at(i: u32) -> vec3<u32> {
    return vec3<u32>(tiles[1u + 3u * i], tiles[2u + 3u * i], tiles[3u + 3u * i]);
}

fn in_bank(expert: u32) -> bool {
    return expert >= FIRST_EXPERT && expert - FIRST_EXPERT < SOME_EXPERTS;
}

// Row of x.
fn source_row(expert: u32, place: u32) -> u32 {
    if (GATED) {
        return tiles[ORDER + place] / CHOSEN;
    }
    return place;
}

// Row of all experts' matrices; `up` is 1 for the row that a gate multiplies.
fn expert_row(expert: u32, row: u32, up: u32) -> u32 {
    if (!GATED) {
        return expert * ROWS + row;
    }
    return expert * 2u * ROWS + select(up * ROWS + row, 2u * row + up, INTERLEAVED);
}

fn bank_row(expert: u32, row: u32, up: u32) -> u32 {
    return expert_row(expert - FIRST_EXPERT, row, up);
}

fn store(expert: u32, place: u32, row: u32, value: f32, partner: f32) {
    var y = value;
    var u = partner;
    if (HAS_BIAS) {
        y += bias[expert_row(expert, row, 0u)];
        if (GATED) {
            u += bias[expert_row(expert, row, 1u)];
        }
    }
    if (GATED) {
        out[OUT_OFFSET + place * OUT_STRIDE + row] = activate(y, u);
        return;
    }
    let pair = tiles[ORDER + place];
    y *= weights[WEIGHTS_OFFSET + pair / CHOSEN * WEIGHTS_STRIDE + pair % CHOSEN];
    out[OUT_OFFSET + pair * OUT_STRIDE + row] = y;
}
