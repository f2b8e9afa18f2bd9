// Codes of a byte: a row is two vec4s a block, in order, then the scales.
const CODE_WORDS: u32 = 8u; // of a block

struct Codes {
    low: vec4<u32>,
    high: vec4<u32>,
}

fn codes_at(start: u32, block: u32) -> Codes {
    return Codes(w[start + 2u * block], w[start + 2u * block + 1u]);
}

// Codes of elements 4k … 4k+3 of a block, a byte each.
fn quad(codes: Codes, k: u32) -> u32 {
    return select(codes.low[k % 4u], codes.high[k % 4u], k > 3u);
}
