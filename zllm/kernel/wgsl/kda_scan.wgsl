// The gated delta rule 16 tokens at a time, second part: the state from chunk to chunk, and what
// is read there. A workgroup owns WIDTH columns of a head, a thread the entries of 4 keys and 4
// columns, in registers from the first chunk to the last.
@group(0) @binding(0) var<storage, read> parts: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> step: array<i32>;
@group(0) @binding(2) var<storage, read_write> planes: array<f32>;
@group(0) @binding(3) var<storage, read_write> out: array<f32>; // has what does not come from M

override HEADS: u32;
override FIRST_HEAD: u32;
override SIZE: u32;
override POSITION: u32;
override READ_PLANE: u32;
override WRITTEN_PLANE: u32;
override WIDTH: u32;
override THREADS: u32; // 8 × WIDTH

// In turn: the state [PADDED, WIDTH], sums of 4 runs of keys [4, 8 × 4 rows, WIDTH], and what the
// tokens write into each column [4 × 4 tokens, WIDTH].
var<workgroup> held: array<vec4<f32>, 1024>;

@compute @workgroup_size(THREADS)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let seq = group.z;
    if (seq >= u32(step[VALID_SEQS])) {
        return;
    }
    let first = u32(step[FIRST_ROW + seq]);
    let last = u32(step[LAST_ROW + seq]);
    let head = FIRST_HEAD + group.y;
    let quads = WIDTH / 4u;
    let quad = lane % quads; // of columns
    let place = lane / quads; // below 32: of four keys, or of a run of keys and four rows
    let rows = place % 8u;
    let run = place / 8u;
    let column = group.x * WIDTH + 4u * quad;
    // The column and four rows whose sums over all keys are this thread's.
    let sum_column = 4u * (lane % quads) + (lane % WIDTH) / quads;
    let sum_rows = lane / WIDTH;
    let out_column = group.x * WIDTH + sum_column;
    var m = mat4x4<f32>(); // of each key
    if (step[POSITION + first] > 0) {
        let origin = state_at(step[READ_PLANE + seq], head);
        // unroll i 4
        m[$i] = four(origin, 4u * place + $iu, column);
        // end
    }
    var slot = slot_of(seq);
    for (var row = first; row <= last; row += 16u) {
        let begin = part_of(slot, group.y, groups.y);
        if (4u * place < PADDED) {
            // unroll i 4
            held[(4u * place + $iu) * quads + quad] = m[$i];
            // end
        }
        var sum = vec4<f32>();
        if (sum_rows < 4u) {
            sum = parts[begin + 16u * out_column + 12u + sum_rows];
        } else {
            // unroll t 4
            if (row + 4u * sum_rows - 16u + $tu <= last && out_column < SIZE) {
                sum[$t] = out[out_at(row + 4u * sum_rows - 16u + $tu, head, out_column)];
            }
            // end
        }
        workgroupBarrier();
        var sums = mat4x4<f32>(); // of each column, four rows
        for (var key = run * (PADDED / 4u); key < (run + 1u) * (PADDED / 4u); key += 8u) {
            // unroll i 8
            let factor$i = parts[begin + 16u * (key + $iu) + rows];
            // end
            // unroll i 8
            {
                let entries = held[(key + $iu) * quads + quad];
                // unroll c 4
                sums[$c] += factor$i * entries[$c];
                // end
            }
            // end
        }
        workgroupBarrier();
        // unroll c 4
        held[(run * 8u + rows) * WIDTH + $cu * quads + quad] = sums[$c];
        // end
        workgroupBarrier();
        var all = vec4<f32>();
        // unroll i 4
        all += held[($iu * 8u + sum_rows) * WIDTH + lane % WIDTH];
        // end
        workgroupBarrier();
        if (sum_rows < 4u) {
            held[sum_rows * WIDTH + lane % WIDTH] = sum - all;
        } else {
            // unroll t 4
            if (row + 4u * sum_rows - 16u + $tu <= last && out_column < SIZE) {
                out[out_at(row + 4u * sum_rows - 16u + $tu, head, out_column)] = sum[$t] + all[$t];
            }
            // end
        }
        workgroupBarrier();
        if (4u * place < PADDED) {
            let decay = parts[begin + 16u * PADDED + place];
            // unroll i 4
            m[$i] *= decay[$i];
            // end
            // unroll a 4
            {
                let of_columns = mat4x4<f32>(
                    held[$au * WIDTH + quad],
                    held[$au * WIDTH + quads + quad],
                    held[$au * WIDTH + 2u * quads + quad],
                    held[$au * WIDTH + 3u * quads + quad],
                );
                let written = transpose(of_columns); // a column a token
                // unroll i 4
                m[$i] += written * parts[begin + 16u * (4u * place + $iu) + 8u + $au];
                // end
            }
            // end
        }
        workgroupBarrier();
        slot += 1u;
    }
    let to = state_at(step[WRITTEN_PLANE + seq], head);
    // unroll i 4
    keep(to, 4u * place + $iu, column, m[$i]);
    // end
}

fn out_at(row: u32, head: u32, column: u32) -> u32 {
    return OUT_OFFSET + row * OUT_STRIDE + head * SIZE + column;
}

// Where a head's state begins in a plane.
fn state_at(plane: i32, head: u32) -> u32 {
    return (u32(plane) * HEADS + head) * SIZE * SIZE;
}

// A key's entries of four columns.
fn four(origin: u32, key: u32, column: u32) -> vec4<f32> {
    return vec4<f32>(
        entry(origin, key, column),
        entry(origin, key, column + 1u),
        entry(origin, key, column + 2u),
        entry(origin, key, column + 3u),
    );
}

fn entry(origin: u32, key: u32, column: u32) -> f32 {
    let at = origin + min(key, SIZE - 1u) * SIZE + min(column, SIZE - 1u);
    return select(0.0, planes[at], key < SIZE && column < SIZE);
}

fn keep(origin: u32, key: u32, column: u32, entries: vec4<f32>) {
    keep_one(origin, key, column, entries.x);
    keep_one(origin, key, column + 1u, entries.y);
    keep_one(origin, key, column + 2u, entries.z);
    keep_one(origin, key, column + 3u, entries.w);
}

fn keep_one(origin: u32, key: u32, column: u32, entry: f32) {
    if (key < SIZE && column < SIZE) {
        planes[origin + key * SIZE + column] = entry;
    }
}
