"""Launchers of grouped-query attention."""

from __future__ import annotations

from zllm.attention.gqa import GqaSpec
from zllm.backend.contract import Op
from zllm.backend.webgpu.device import Buffer, DeviceInfo, Dispatch, Kernel
from zllm.backend.webgpu.elementwise import places
from zllm.backend.webgpu.kernels import ceil_div, constants, reduction, strided_grid
from zllm.backend.webgpu.lowering import Context, View
from zllm.kernel.wgsl.source import compose

MAX_HEAD_SIZE = 256  # of attend_lanes' sums; attend_group needs a thread for four numbers
GROUP_THREADS = 128
# A split of fewer positions costs more in attend_combine than it saves; more workgroups than
# FULL_GROUPS occupy a large GPU anyway.
SPLIT_POSITIONS, MAX_SPLITS, FULL_GROUPS = 256, 16, 512


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
    splits = split_count(_seen(op, context), out.rows * op.spec.heads)
    if splits == 1:
        return [_attend_group(op, context, view, out, 1)]
    quads = op.spec.head_size // 4
    parts = context.scratch(16 * out.rows * op.spec.heads * splits * (quads + 1))
    scattered = View(parts, 0, 0, out.rows, out.columns)
    first = _attend_group(op, context, view, scattered, splits)
    return [first, _combine(op, context, parts, out, splits)]


def _seen(op: Op, context: Context) -> int:
    """The most positions of a query."""
    longest = context.key.context
    return min(longest, op.spec.window) if op.spec.window else longest


def split_count(context: int, queries: int) -> int:
    """Into how many workgroups a query's positions are dealt."""
    return max(1, min(ceil_div(context, SPLIT_POSITIONS), MAX_SPLITS, FULL_GROUPS // queries))


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
    return _attend(("attend", lanes, "attend_lanes"), op, context, values, q, out.buffer, grid)


def _attend_group(op: Op, context: Context, q: View, out: View, splits: int) -> Dispatch:
    tiles = ceil_div(_seen(op, context), splits * GROUP_THREADS)
    values = _shared(op, context, q, out) | {
        "THREADS": GROUP_THREADS,
        "SPLITS": splits,
        "SPLIT_POSITIONS": tiles * GROUP_THREADS,
    }
    sources = ("attend", reduction(context.info), "attend_group")
    grid = (op.spec.heads, out.rows, splits)
    return _attend(sources, op, context, values, q, out.buffer, grid)


def _attend(
    sources: tuple[str, ...],
    op: Op,
    context: Context,
    values: dict[str, float],
    q: View,
    out: Buffer,
    grid: tuple[int, int, int],
) -> Dispatch:
    cache = op.cache(1)
    keys, stored = context.store(cache).buffers
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
    grid = strided_grid(ceil_div(out.rows * spec.heads * spec.head_size // 4, 64), context.info)
    return Dispatch(kernel, (parts, context.step, out.buffer), grid)
