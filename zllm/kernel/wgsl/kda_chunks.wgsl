// Where chunks of 16 tokens have their parts (kda_chunk.wgsl).
override PADDED: u32; // SIZE up to a multiple of 32
override VALID_SEQS: u32;
override FIRST_ROW: u32;
override LAST_ROW: u32;
override OUT_OFFSET: u32;
override OUT_STRIDE: u32;

// A sequence's first slot. Those of one end before the next, since rows follow each other.
fn slot_of(seq: u32) -> u32 {
    return u32(step[FIRST_ROW + seq]) / 16u + seq;
}

fn part_of(slot: u32, head: u32, heads: u32) -> u32 {
    return (slot * heads + head) * (16u * PADDED + PADDED / 4u);
}
