// Products with the chosen experts (zllm.moe.experts): what both shapes of kernel share.
// A unit is TOGETHER pairs of a token and an expert: one pair, or all of the token's.
// GATED: results are activate(gate, up). Else Σ weight · (product + bias) over the unit's pairs.
// Bindings 0, 2 and 5 are for banks (several.py).
@group(0) @binding(3) var<storage, read> bias: array<f32>;
@group(0) @binding(4) var<storage, read> routed: array<u32>; // ids, and weights as bits
@group(0) @binding(6) var<storage, read> step: array<i32>;
@group(0) @binding(7) var<storage, read_write> out: array<f32>;

const NORM: bool = false; // of x, before the product

override ROWS: u32; // results of a unit
override CHOSEN: u32; // pairs of a token
override TOGETHER: u32; // pairs of a unit
override GATED: bool;
override INTERLEAVED: bool; // gate and up rows alternate, else an expert's gate rows come first
override HAS_BIAS: bool;
override FIRST_EXPERT: u32; // of the dispatch: pairs of others' experts are left alone
override SOME_EXPERTS: u32;
override BANK_FIRST: u32; // expert of the bank
override ADD: bool; // to what the dispatches before left
override VALID_ROWS: u32; // offset of a step word
override IDS_OFFSET: u32;
override IDS_STRIDE: u32;
override WEIGHTS_OFFSET: u32;
override WEIGHTS_STRIDE: u32;
override OUT_OFFSET: u32;
override OUT_STRIDE: u32;

fn units() -> u32 {
    return u32(step[VALID_ROWS]) * (CHOSEN / TOGETHER);
}

fn pairs_of_unit() -> u32 {
    return TOGETHER;
}

fn expert_of(pair: u32) -> u32 {
    return routed[IDS_OFFSET + pair / CHOSEN * IDS_STRIDE + pair % CHOSEN];
}

fn in_bank(expert: u32) -> bool {
    return expert >= FIRST_EXPERT && expert - FIRST_EXPERT < SOME_EXPERTS;
}

// Whether the dispatch has anything to say on the results of a unit; where they are sums, the first
// one always has.
fn has_results(unit: u32) -> bool {
    if (!GATED && !ADD) {
        return true;
    }
    for (var i = 0u; i < pairs_of_unit(); i++) {
        if (in_bank(expert_of(unit * pairs_of_unit() + i))) {
            return true;
        }
    }
    return false;
}

fn weight_of(pair: u32) -> f32 {
    if (GATED) {
        return 1.0;
    }
    return bitcast<f32>(routed[WEIGHTS_OFFSET + pair / CHOSEN * WEIGHTS_STRIDE + pair % CHOSEN]);
}

// Row of x.
fn source_row(pair: u32) -> u32 {
    return select(pair, pair / CHOSEN, GATED);
}

// Row of all experts' matrices; `up` is 1 for the row that a gate multiplies.
fn expert_row(expert: u32, row: u32, up: u32) -> u32 {
    if (!GATED) {
        return expert * ROWS + row;
    }
    return expert * 2u * ROWS + select(up * ROWS + row, 2u * row + up, INTERLEAVED);
}

fn bank_row(expert: u32, row: u32, up: u32) -> u32 {
    return expert_row(expert - BANK_FIRST, row, up);
}

fn store(unit: u32, row: u32, value: f32, partner: f32) {
    var y = value;
    var u = partner;
    if (HAS_BIAS) {
        for (var i = 0u; i < pairs_of_unit(); i++) {
            let pair = unit * pairs_of_unit() + i;
            let expert = expert_of(pair);
            if (in_bank(expert)) {
                y += weight_of(pair) * bias[expert_row(expert, row, 0u)];
            }
            if (GATED) {
                u += bias[expert_row(expert, row, 1u)];
            }
        }
    }
    if (GATED) {
        y = activate(y, u);
    }
    let to = OUT_OFFSET + unit * OUT_STRIDE + row;
    if (ADD) {
        y += out[to];
    }
    out[to] = y;
}
