// Rows of whole vec4s, read as vec4s or as words.
@group(0) @binding(0) var<storage, read> w: array<vec4<u32>>;

// Word `at` of the row that starts at vec4 `start`.
fn word_at(start: u32, at: u32) -> u32 {
    return w[start + at / 4u][at % 4u];
}
