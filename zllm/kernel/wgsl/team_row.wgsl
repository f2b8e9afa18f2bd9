// Matrix row i of the team whose first result is `row`; beyond the end, the last one. Of EACH rows
// half are gates if GATED, and what they multiply lies ROWS further.
fn matrix_row(row: u32, i: u32) -> u32 {
    if (GATED) {
        return min(row + i % (EACH / 2u), ROWS - 1u) + ROWS * (i / (EACH / 2u));
    }
    return min(row + i, ROWS - 1u);
}
