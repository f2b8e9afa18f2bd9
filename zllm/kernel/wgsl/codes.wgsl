// Codes of a few bits in planes: a row is the nibbles of all its blocks, then pairs, then bits, as
// far as the format has them, then the scales.
// Nibbles: a vec4 a block; low halves are elements 0 … 15, high halves 16 … 31.
// Pairs: two words a block; bits 2k, 2k+1 of byte i are of element 4k+i of the half.
// Bits: a word a block; bit k of byte i is of element 4k+i.
const CODE_WORDS: u32 = NIBBLES + PAIRS + BITS; // of a block

struct Codes {
    nibbles: vec4<u32>,
    pairs: vec2<u32>,
    bits: u32,
}

fn codes_at(start: u32, block: u32) -> Codes {
    var codes: Codes;
    if (NIBBLES > 0u) {
        codes.nibbles = w[start + block];
    }
    if (PAIRS > 0u) {
        let at = NIBBLES * BLOCKS + 2u * block;
        codes.pairs = vec2<u32>(word_at(start, at), word_at(start, at + 1u));
    }
    if (BITS > 0u) {
        codes.bits = word_at(start, (NIBBLES + PAIRS) * BLOCKS + block);
    }
    return codes;
}

// Codes of elements 4k … 4k+3 of a block, a byte each.
fn quad(codes: Codes, k: u32) -> u32 {
    var found = 0u;
    if (NIBBLES > 0u) {
        found = (codes.nibbles[k % 4u] >> (4u * (k / 4u))) & 0x0f0f0f0fu;
    }
    if (PAIRS > 0u) {
        found = (codes.pairs[k / 4u] >> (2u * (k % 4u))) & 0x03030303u;
    }
    if (BITS > 0u) {
        found |= ((codes.bits >> k) & 0x01010101u) << BIT_PLACE;
    }
    return found;
}
