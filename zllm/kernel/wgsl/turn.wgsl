// Which numbers of a rotated range are a pair, and by which angle a row turns it. The kernel binds
// `angles`, [context, r] of cos, then sin, and `step`; with LONG_ROW > 0 sequences flagged LONG
// read a second such part that begins at this row.
override ROTATED: u32; // r
override INTERLEAVED: bool;
override INVERSE: bool = false;
override LONG_ROW: u32;
override POSITION: u32; // offsets of step words
override SEQ: u32;
override FLAGS: u32;

// Where in the range the two numbers of a pair stand; beyond it, two neighbours.
fn pair_places(pair: u32) -> vec2<u32> {
    let half = ROTATED / 2u;
    if (pair < half && !INTERLEAVED) {
        return vec2<u32>(pair, pair + half);
    }
    return vec2<u32>(2u * pair, 2u * pair + 1u);
}

fn turn(ab: vec2<f32>, row: u32, pair: u32) -> vec2<f32> {
    if (pair >= ROTATED / 2u) {
        return ab;
    }
    let at = angle_row(row) * ROTATED + pair;
    let c = angles[at];
    var s = angles[at + ROTATED / 2u];
    if (INVERSE) {
        s = -s;
    }
    return vec2<f32>(ab.x * c - ab.y * s, ab.y * c + ab.x * s);
}

fn angle_row(row: u32) -> u32 {
    let position = u32(step[POSITION + row]);
    if (LONG_ROW > 0u && (step[FLAGS + u32(step[SEQ + row])] & 4) != 0) {
        return position + LONG_ROW;
    }
    return position;
}
