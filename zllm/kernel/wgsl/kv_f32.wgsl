// Cached keys and values, [slots, G, K] of f32, read a quad at a time.
@group(0) @binding(1) var<storage, read> keys: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> values: array<vec4<f32>>;

const READ_QUADS: u32 = 1u;
alias Read = array<vec4<f32>, READ_QUADS>;

fn key(at: u32) -> Read {
    return Read(keys[at]);
}

fn value(at: u32) -> Read {
    return Read(values[at]);
}
