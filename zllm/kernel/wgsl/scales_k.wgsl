// Four words a super-block of 256, as stored: f16 d and dmin, 12 bytes of scales and mins of six
// bits (zllm.quant.gguf_k).
fn scale_words() -> u32 {
    return BLOCKS / 2u;
}

fn scales_at(start: u32, block: u32) -> Scales {
    let head = w[start + CODE_WORDS * BLOCKS / 4u + block / 8u];
    let shift = 8u * (block % 4u);
    let packed = (head.yzw >> vec3<u32>(shift)) & vec3<u32>(0xffu);
    var scale = packed.x & 63u;
    var least = packed.y & 63u;
    if (block % 8u > 3u) {
        scale = (packed.z & 15u) | ((packed.x >> 2u) & 48u);
        least = (packed.z >> 4u) | ((packed.y >> 2u) & 48u);
    }
    let d = unpack2x16float(head.x);
    return Scales(vec2<f32>(d.x * f32(scale)), vec2<f32>(-(d.y * f32(least))));
}
