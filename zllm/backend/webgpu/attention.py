"""Launchers of grouped-query attention."""

from __future__ import annotations

from zllm.attention.gqa import GqaSpec
from zllm.backend.contract import Op
from zllm.backend.webgpu.device import Buffer, DeviceInfo, Dispatch, Kernel
from zllm.backend.webgpu.elementwise import places
from zllm.backend.webgpu.kernels import ceil_div, constants
from zllm.backend.webgpu.lowering import Context, View
from zllm.kernel.wgsl.source import compose

MAX_HEAD_SIZE = 256  # of attend_lanes' and attend_tile's sums
SPLIT_THREADS = 256
SPLIT_TILE = SPLIT_THREADS // 2  # positions that attend_split takes at once
TILE, TILE_HEADS = 32, 8  # of attend_tile: queries, also positions at once; of them query heads
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
        return [_attend_lanes(op, context, view, out)]
    spec: GqaSpec = op.spec
    decode = context.key.rows == context.key.seqs
    blocks = ceil_div(spec.heads // spec.kv_heads, TILE_HEADS)
    block = ceil_div(spec.heads // spec.kv_heads, blocks)
    rows = 1 if decode else TILE // block
    grid = (spec.kv_heads * blocks, ceil_div(out.rows, rows))
    tile = SPLIT_TILE if decode else TILE
    splits = split_count(_seen(op, context), grid[0] * grid[1], tile)
    values = _shared(op, context, view, out)
    values |= {"BLOCK": block, "BLOCKS": blocks, "SPLITS": splits}
    values |= {"THREADS": SPLIT_THREADS} if decode else {"ROWS": rows}
    kernel = "attend_split" if decode else "attend_tile"
    if splits == 1:
        return [_attend((kernel,), op, context, values, view, out.buffer, (*grid, 1))]
    quads = spec.head_size // 4
    parts = context.scratch(16 * out.rows * spec.heads * splits * (quads + 1))
    first = _attend((kernel,), op, context, values, view, parts, (*grid, splits))
    return [first, _combine(op, context, parts, out, splits)]


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


def _attend_lanes(op: Op, context: Context, q: View, out: View) -> Dispatch:
    info = context.info
    queries = out.rows * op.spec.heads
    if "subgroups" in info.features:
        lanes, threads = "lanes_subgroup", info.subgroup_size
        grid = (min(queries, 65535), ceil_div(queries, 65535), 1)
    else:
        lanes, threads = "lanes_single", 8
        grid = (ceil_div(queries, threads), 1, 1)
    values = _shared(op, context, q, out) | {"THREADS": threads}
    return _attend((lanes, "attend_lanes"), op, context, values, q, out.buffer, grid)


def _attend(
    sources: tuple[str, ...],
    op: Op,
    context: Context,
    values: dict[str, float],
    q: View,
    out: Buffer,
    grid: tuple[int, int, int],
) -> Dispatch:
    store = context.store(op.cache(1))
    keys, stored = store.buffers
    sources = (f"kv_{store.dtype}", "attend", *sources)
    # WGSL has no optional binding: without sinks q stands in.
    sinks = context.banks(op.weight(2))[0].buffer if len(op.ins) > 2 else q.buffer
    access = ("read", "read", "read", "read", "read", "write")
    kernel = Kernel(sources[-1], compose(*sources), access, constants(values))  # type: ignore[arg-type]
    return Dispatch(kernel, (q.buffer, keys, stored, context.step, sinks, out), grid)


def _combine(op: Op, context: Context, parts: Buffer, out: View, splits: int) -> Dispatch:
    spec: GqaSpec = op.spec
    values: dict[str, float] = {
        "HEADS": spec.heads,
        "QUADS": spec.head_size // 4,
        "SPLITS": splits,
        "VALID_ROWS": context.layout.offset["valid_rows"],
    } | places(out=out)
    access = ("read", "read", "write")
    kernel = Kernel("attend_combine", compose("attend_combine"), access, constants(values))  # type: ignore[arg-type]
    return Dispatch(kernel, (parts, context.step, out.buffer), (spec.heads, out.rows, 1))
