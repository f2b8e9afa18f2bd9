// Where rope_append keeps keys and values, [slots, G, K] of f16, two numbers a word.
@group(0) @binding(5) var<storage, read_write> keys: array<u32>;
@group(0) @binding(6) var<storage, read_write> values: array<u32>;

const LARGEST: vec2<f32> = vec2<f32>(65504.0);
const EXPONENT: u32 = 0x7f800000u;

// A number beyond f16 becomes the largest: one infinite key would turn every later row into NaN.
// What is not finite stays so, to be seen in the record.
fn kept(pair: vec2<f32>) -> u32 {
    let lost = (bitcast<vec2<u32>>(pair) & vec2<u32>(EXPONENT)) == vec2<u32>(EXPONENT);
    let word = pack2x16float(clamp(pair, -LARGEST, LARGEST));
    let low = select(word & 0xffffu, 0x7e00u, lost.x);
    return low | select(word & 0xffff0000u, 0x7e000000u, lost.y);
}
