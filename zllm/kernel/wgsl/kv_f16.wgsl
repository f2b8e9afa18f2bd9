// Cached keys and values, [slots, G, K] of f16, read two quads at a time.
@group(0) @binding(1) var<storage, read> keys: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read> values: array<vec4<u32>>;

const READ_QUADS: u32 = 2u;
alias Read = array<vec4<f32>, READ_QUADS>;

fn key(at: u32) -> Read {
    return widened(keys[at]);
}

fn value(at: u32) -> Read {
    return widened(values[at]);
}

fn widened(words: vec4<u32>) -> Read {
    return Read(
        vec4<f32>(unpack2x16float(words.x), unpack2x16float(words.y)),
        vec4<f32>(unpack2x16float(words.z), unpack2x16float(words.w))
    );
}
