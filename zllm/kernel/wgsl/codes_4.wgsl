// Which planes hold a code of 4 bits (codes.wgsl, repack_codes.wgsl): words of each a block.
const NIBBLES: u32 = 4u;
const PAIRS: u32 = 0u;
const BITS: u32 = 0u;
const BIT_PLACE: u32 = 4u; // in the code
