// Where rope_append keeps keys and values, [slots, G, K] of f32, two numbers at a time.
@group(0) @binding(5) var<storage, read_write> keys: array<vec2<f32>>;
@group(0) @binding(6) var<storage, read_write> values: array<vec2<f32>>;

fn kept(pair: vec2<f32>) -> vec2<f32> {
    return pair;
}
