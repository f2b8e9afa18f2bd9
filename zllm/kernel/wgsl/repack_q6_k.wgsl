// Q6_K super-blocks of 256 (zllm.quant.gguf_k) to the blocks of 32 that decode_q6_k reads.
// 210 bytes: ql 128, qh 64, int8 scales 16, f16 d. Run `run` of half `half` holds 32 elements.
@group(0) @binding(0) var<storage, read> raw: array<u32>;
@group(0) @binding(1) var<storage, read_write> out: array<u32>;

override ROWS: u32;
override RAW_ROW_WORDS: u32;
override BLOCKS: u32; // of 32 elements in a row

// One thread writes one block.
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    for (var i = id.x; i < ROWS * BLOCKS; i += 64u * groups.x) {
        repack_block(i / BLOCKS, i % BLOCKS);
    }
}

fn repack_block(row: u32, block: u32) {
    let to = 7u * BLOCKS * row;
    let at = 210u * (block / 8u);
    let half = block % 8u / 4u;
    let run = block % 4u;
    let low = at + 64u * half + 32u * (run % 2u);
    let high = at + 128u + 32u * half;
    let scale = at + 192u + 8u * half + 2u * run;
    out[to + 6u * BLOCKS + block] = byte(row, at + 208u) | (byte(row, at + 209u) << 8u)
        | (byte(row, scale) << 16u) | (byte(row, scale + 1u) << 24u);
    var upper = vec2<u32>(); // of elements 0 … 15 and 16 … 31
    for (var k = 0u; k < 4u; k++) {
        var word = 0u;
        for (var i = 0u; i < 4u; i++) {
            let j = 4u * k + i;
            let first = (byte(row, low + j) >> (4u * (run / 2u))) & 15u;
            let second = (byte(row, low + 16u + j) >> (4u * (run / 2u))) & 15u;
            word |= (first | (second << 4u)) << (8u * i);
            upper.x |= ((byte(row, high + j) >> (2u * run)) & 3u) << (8u * i + 2u * k);
            upper.y |= ((byte(row, high + 16u + j) >> (2u * run)) & 3u) << (8u * i + 2u * k);
        }
        out[to + 4u * block + k] = word;
    }
    out[to + 4u * BLOCKS + 2u * block] = upper.x;
    out[to + 4u * BLOCKS + 2u * block + 1u] = upper.y;
}

fn byte(row: u32, at: u32) -> u32 {
    return (raw[row * RAW_ROW_WORDS + at / 4u] >> (8u * (at % 4u))) & 0xffu;
}
