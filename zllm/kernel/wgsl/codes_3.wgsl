// Which planes hold a code of 3 bits (codes.wgsl, repack_codes.wgsl): words of each a block.
const NIBBLES: u32 = 0u;
const PAIRS: u32 = 2u;
const BITS: u32 = 1u;
const BIT_PLACE: u32 = 2u; // in the code
