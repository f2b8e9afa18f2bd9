"""Launchers of grouped-query attention."""

from __future__ import annotations

from zllm.attention.gqa import GqaSpec
from zllm.backend.contract import Op
from zllm.backend.webgpu.device import Buffer, DeviceInfo, Dispatch, Kernel
from zllm.backend.webgpu.elementwise import places
from zllm.backend.webgpu.kernels import ceil_div, constants
from zllm.backend.webgpu.lowering import Context, View
from zllm.backend.webgpu.product import shares_x
from zllm.kernel.wgsl.source import compose
from zllm.kernel.wgsl.unroll import unroll

MAX_HEAD_SIZE = 256  # of attend_lanes' and attend_tile's sums
READ_QUADS = {"f32": 1, "f16": 2}  # of kv_f32.wgsl and kv_f16.wgsl
SPLIT_THREADS, SPLIT_LANES = 128, 2  # of attend_split; lanes read one key
SPLIT_TILE = SPLIT_THREADS // SPLIT_LANES  # positions that it takes at once
TILE, TILE_SIDE = 32, 8  # of attend_tile: queries, also positions at once; threads along either
SPLIT_HEADS, TILE_HEADS = 4, 8  # most query heads of a workgroup: more do not fit in its memory
# llvmpipe ends an invocation's loops silently after 65,535 turns in all, nested ones counted.
LANE_TURNS = 60_000
HEADS_SIZE = 128  # of attend_heads: llvmpipe compiles larger ones for half a minute
HEADS_SUMS = 192  # numbers that a lane of attend_heads adds up
# Fewer positions are not worth a second dispatch; more workgroups than FULL_GROUPS occupy a large
# GPU anyway; attend_combine has a thread for each split.
WHOLE_POSITIONS, MAX_SPLITS, FULL_GROUPS = 256, 128, 512


def missing_attend(op: Op, info: DeviceInfo) -> str | None:
    spec: GqaSpec = op.spec
    if spec.head_size % 4 or spec.head_size > MAX_HEAD_SIZE:
        return f"head size {spec.head_size} is no multiple of 4 up to {MAX_HEAD_SIZE}"
    rows = op.outs[0].shape[0]
    if rows > info.max_grid:
        return f"{rows} rows are more than the device's grid of {info.max_grid}"
    return None


def lower_attend(op: Op, context: Context) -> list[Dispatch]:
    view, out = context.view(op.value(0)), context.view(op.outs[0])
    if context.info.software:
        return _attend_lanes(op, context, view, out)
    spec: GqaSpec = op.spec
    decode = context.key.rows == context.key.seqs
    blocks = ceil_div(spec.heads // spec.kv_heads, SPLIT_HEADS if decode else TILE_HEADS)
    block = ceil_div(spec.heads // spec.kv_heads, blocks)
    rows = 1 if decode else TILE // block
    grid = (spec.kv_heads * blocks, ceil_div(out.rows, rows))
    tile = SPLIT_TILE if decode else TILE
    splits = split_count(_seen(op, context), grid[0] * grid[1], tile)
    values = _shared(op, context, view, out)
    values |= {"BLOCKS": blocks, "SPLITS": splits}
    values |= {"THREADS": SPLIT_THREADS} if decode else {"ROWS": rows}
    assert not decode or _split_bytes(spec, block) <= context.info.max_workgroup_bytes
    kernel = "attend_split" if decode else "attend_tile"
    if splits == 1:
        return [_attend((kernel,), op, context, values, view, out.buffer, (*grid, 1), block)]
    quads = spec.head_size // 4
    parts = context.scratch(16 * out.rows * spec.heads * splits * (quads + 1))
    first = _attend((kernel,), op, context, values, view, parts, (*grid, splits), block)
    return [first, combine(spec.heads, quads, context, parts, out, splits)]


def _split_bytes(spec: GqaSpec, block: int) -> int:
    """Workgroup memory of attend_split; some drivers do not check sizes that are overrides."""
    numbers = block * (spec.head_size + SPLIT_THREADS + SPLIT_TILE + 1)
    return 4 * (numbers + SPLIT_TILE + 5 * SPLIT_THREADS)


def _seen(op: Op, context: Context) -> int:
    """The most positions of a query."""
    longest = context.key.context
    return min(longest, op.spec.window) if op.spec.window else longest


def split_count(context: int, groups: int, tile: int) -> int:
    """Into how many workgroups each of `groups` has its positions dealt, `tile` at least."""
    if context <= WHOLE_POSITIONS:
        return 1
    return max(1, min(ceil_div(context, tile), MAX_SPLITS, FULL_GROUPS // groups))


def _shared(op: Op, context: Context, q: View, out: View) -> dict[str, float]:
    spec: GqaSpec = op.spec
    cache = op.cache(1)
    at, entries = context.layout.offset, context.layout.table_entries
    assert not (q.offset | q.stride | out.offset | out.stride) % 4, (q, out)
    return {
        "HEADS": spec.heads,
        "KV_HEADS": spec.kv_heads,
        "QUADS": spec.head_size // 4,
        "SCALE": spec.scale,
        "WINDOW": spec.window,
        "HAS_SINKS": len(op.ins) > 2,
        "SEQ": at["seq"],
        "POSITION": at["position"],
        "VALID_ROWS": at["valid_rows"],
        "TABLE": at[f"{cache.group}.table"],
        "ENTRIES": entries[cache.group],
        "PAGE_SLOTS": context.store(cache).page_slots,
    } | places(q=q, out=out)


def _attend_lanes(op: Op, context: Context, q: View, out: View) -> list[Dispatch]:
    info, spec = context.info, op.spec
    wide = "subgroups" in info.features
    threads = info.subgroup_size if wide else 8
    splits = lanes_splits(_seen(op, context), threads if wide else 1, spec.head_size // 4)
    heads = shares_x(info) and spec.head_size <= HEADS_SIZE
    block = lanes_heads(spec) if heads else 1
    units = out.rows * (spec.heads // block) * splits
    if wide:
        grid = (min(units, 65535), ceil_div(units, 65535), 1)
    else:
        grid = (ceil_div(units, threads), 1, 1)
    kernel = "attend_heads" if heads else "attend_lanes"
    sources = ("lanes_subgroup" if wide else "lanes_single", kernel)
    values = _shared(op, context, q, out) | {"THREADS": threads, "SPLITS": splits}
    if splits == 1:
        return [_attend(sources, op, context, values, q, out.buffer, grid, block)]
    parts = context.scratch(16 * units * block * (spec.head_size // 4 + 1))
    first = _attend(sources, op, context, values, q, parts, grid, block)
    return [first, combine(spec.heads, spec.head_size // 4, context, parts, out, splits)]


def lanes_heads(spec: GqaSpec) -> int:
    """How many heads of a group a unit of attend_heads takes."""
    group = spec.heads // spec.kv_heads
    most = max(1, HEADS_SUMS // spec.head_size)
    return max(heads for heads in range(1, group + 1) if group % heads == 0 and heads <= most)


def lanes_splits(context: int, lanes: int, quads: int) -> int:
    """Into how many units a query's positions are dealt so that none goes round too often."""
    inner = 2 * 2 * quads + 1  # for four positions of a lane: keys, values, and a loop in each
    return ceil_div(ceil_div(context, 4 * lanes) * inner, LANE_TURNS)


def _attend(
    sources: tuple[str, ...],
    op: Op,
    context: Context,
    values: dict[str, float],
    q: View,
    out: Buffer,
    grid: tuple[int, int, int],
    block: int = 1,
) -> Dispatch:
    store = context.store(op.cache(1))
    keys, stored = store.buffers
    # WGSL has no optional binding: without sinks q stands in.
    sinks = context.banks(op.weight(2))[0].buffer if len(op.ins) > 2 else q.buffer
    access = ("read", "read", "read", "read", "read", "write")
    text = _text(op.spec, READ_QUADS[store.dtype], block)
    wgsl = unroll(compose(f"kv_{store.dtype}", "attend", *sources), text)
    sizes = "".join(f"const {name}: u32 = {text[name]}u;\n" for name in ("BLOCK", "READS"))
    wgsl = sizes + wgsl
    kernel = Kernel(sources[-1], wgsl, access, constants(values))  # type: ignore[arg-type]
    return Dispatch(kernel, (q.buffer, keys, stored, context.step, sinks, out), grid)


def _text(spec: GqaSpec, read_quads: int, block: int) -> dict[str, int]:
    """How often the kernels' loops over registers go round."""
    quads = spec.head_size // 4
    reads = quads // read_quads
    return {
        "BLOCK": block,
        "READ_QUADS": read_quads,
        "READS": reads,
        "STEPS": ceil_div(reads, SPLIT_LANES),
        "TRIPS": ceil_div(SPLIT_TILE, SPLIT_THREADS // reads),
        "DEPTH": ceil_div(quads, TILE_SIDE),
    }


def combine(
    heads: int, quads: int, context: Context, parts: Buffer, out: View, splits: int
) -> Dispatch:
    """parts: of each row, head and split (maximum, total), then unscaled sums."""
    values: dict[str, float] = {
        "HEADS": heads,
        "QUADS": quads,
        "SPLITS": splits,
        "VALID_ROWS": context.layout.offset["valid_rows"],
    } | places(out=out)
    access = ("read", "read", "write")
    kernel = Kernel("attend_combine", compose("attend_combine"), access, constants(values))  # type: ignore[arg-type]
    return Dispatch(kernel, (parts, context.step, out.buffer), (heads, out.rows, 1))
