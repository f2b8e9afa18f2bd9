// Elements 4k … 4k+3 of a block of Q4_1.
// unroll k 8
fn block_quad_$k(block: Block) -> vec4<f32> {
    let q = bytes((block.nibbles[$k % 4] >> ($ku / 4u * 4u)) & 0x0f0f0f0fu);
    let dm = unpack2x16float(block.scales);
    return dm.x * q + dm.y;
}

// end
