// Where the token at a position of a sequence is stored. `table` is the offset of a group's page
// tables among the step words, `entries` the pages of a sequence there.
fn page_slot(table: u32, entries: u32, page_slots: u32, seq: u32, position: u32) -> u32 {
    let page = u32(step[table + seq * entries + position / page_slots]);
    return page * page_slots + position % page_slots;
}
