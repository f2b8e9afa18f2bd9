"""Launchers of attention over a window of raw keys and compressed entries of the past."""

from __future__ import annotations

from zllm.attention.compressed import CompressedSpec, CompressorSpec, SelectEntriesSpec
from zllm.backend.contract import Cache, Op
from zllm.backend.webgpu.attention import combine
from zllm.backend.webgpu.device import Access, DeviceInfo, Dispatch, Kernel
from zllm.backend.webgpu.elementwise import places
from zllm.backend.webgpu.kernels import ceil_div, constants, reduction, strided_grid
from zllm.backend.webgpu.lowering import Context, View
from zllm.backend.webgpu.selection import lower_selection, missing_selection
from zllm.kernel.wgsl.source import compose
from zllm.kernel.wgsl.unroll import unroll
from zllm.norm import UnitNormSpec

MAX_ENTRY, MAX_HEAD = 1024, 512  # of the arrays in workgroup and private memory
TILE_HEADS, TILE_KEYS, TILE_THREADS = 16, 32, 256
# A split of fewer keys costs more in the combining than it saves; more workgroups than
# FULL_GROUPS occupy a large GPU anyway.
SPLIT_KEYS, MAX_SPLITS, FULL_GROUPS = 64, 32, 512
READ: tuple[Access, ...] = ("read",)


def lower_unit_norm(op: Op, context: Context) -> list[Dispatch]:
    spec: UnitNormSpec = op.spec
    x, out, info = context.view(op.value(0)), context.view(op.outs[0]), context.info
    runs = x.columns // spec.size
    values: dict[str, float] = {
        "COLUMNS": spec.size,
        "ROWS": x.rows,
        "RUNS": runs,
        "EPS": spec.eps,
        "THREADS": _threads(info),
    } | places(x=x, out=out)
    wgsl = compose(reduction(info), "unit_norm")
    kernel = Kernel("unit_norm", wgsl, ("read", "write"), constants(values))
    return [Dispatch(kernel, (x.buffer, out.buffer), strided_grid(x.rows * runs, info))]


def _threads(info: DeviceInfo) -> int:
    return max(info.subgroup_size, 4) if info.software else 128


def missing_compress_append(op: Op, info: DeviceInfo) -> str | None:
    spec: CompressorSpec = op.spec
    if spec.size > MAX_ENTRY:
        return f"entries of {spec.size} numbers; at most {MAX_ENTRY} fit"
    return None


def lower_compress_append(op: Op, context: Context) -> list[Dispatch]:
    spec: CompressorSpec = op.spec
    kv, gate = context.view(op.value(0)), context.view(op.value(1))
    assert kv.buffer is gate.buffer, "results of one product lie side by side"
    cache = op.cache(2)
    weights = [context.banks(op.weight(i))[0].buffer for i in (3, 4, 5)]
    at, info = context.layout.offset, context.info
    values: dict[str, float] = {
        "WIDTH": spec.width,
        "SIZE": spec.size,
        "RATE": spec.rate,
        "OVERLAP": spec.overlap,
        "ROTATED": spec.rotated,
        "EPS": spec.eps,
        "ROW_SLOT": at[f"{cache.group}.row_slot"],
        "VALID_ROWS": at["valid_rows"],
        "POSITION": at["position"],
        "SEQ": at["seq"],
        "FIRST_ROW": at["first_row"],
        "THREADS": _threads(info),
    }
    values |= _table("", cache, context) | places(kv=kv, gate=gate)
    wgsl = compose("page_slot", reduction(info), "compress_append")
    access: tuple[Access, ...] = (*READ * 5, "write", "write", "write")
    kernel = Kernel("compress_append", wgsl, access, constants(values))
    buffers = (kv.buffer, *weights, context.step, *context.store(cache).buffers)
    return [Dispatch(kernel, buffers, strided_grid(kv.rows, info))]


def _table(prefix: str, cache: Cache, context: Context) -> dict[str, float]:
    return {
        f"{prefix}TABLE": context.layout.offset[f"{cache.group}.table"],
        f"{prefix}ENTRIES": context.layout.table_entries[cache.group],
        f"{prefix}PAGE_SLOTS": context.store(cache).page_slots,
    }


def missing_select_entries(op: Op, info: DeviceInfo) -> str | None:
    return missing_selection(op.spec.index)


def lower_select_entries(op: Op, context: Context) -> list[Dispatch]:
    spec: SelectEntriesSpec = op.spec
    return lower_selection(op, context, spec.index, spec.rate, expand=False)


def missing_attend_compressed(op: Op, info: DeviceInfo) -> str | None:
    spec: CompressedSpec = op.spec
    if spec.size % 4 or spec.size > MAX_HEAD:
        return f"head size {spec.size} is no multiple of 4 up to {MAX_HEAD}"
    rows = op.outs[0].shape[0]
    if rows > info.max_grid:
        return f"{rows} rows are more than the device's grid of {info.max_grid}"
    return None


def lower_attend_compressed(op: Op, context: Context) -> list[Dispatch]:
    spec: CompressedSpec = op.spec
    out, info = context.view(op.outs[0]), context.info
    if info.software:
        return [_attend_lanes(op, context, out)]
    head_tiles = ceil_div(spec.heads, TILE_HEADS)
    keys = _most_keys(op, context)
    splits = min(ceil_div(keys, SPLIT_KEYS), MAX_SPLITS, FULL_GROUPS // (out.rows * head_tiles))
    if splits <= 1:
        return [_attend_tile(op, context, out, 1)]
    parts = context.scratch(16 * out.rows * spec.heads * splits * (spec.size // 4 + 1))
    scattered = View(parts, 0, 0, out.rows, out.columns)
    first = _attend_tile(op, context, scattered, splits)
    return [first, combine(spec.heads, spec.size // 4, context, parts, out, splits)]


def _most_keys(op: Op, context: Context) -> int:
    spec: CompressedSpec = op.spec
    entries = context.key.context // spec.rate if spec.rate else 0
    if op.ins[4] is not None:
        entries = min(entries, context.view(op.value(4)).columns)
    return min(spec.window, context.key.context) + entries


def _attend_tile(op: Op, context: Context, out: View, splits: int) -> Dispatch:
    spec: CompressedSpec = op.spec
    slices = TILE_THREADS // (spec.size // 4)
    tiles = ceil_div(_most_keys(op, context), splits * TILE_KEYS)
    values: dict[str, float] = {
        "SPLITS": splits,
        "SPLIT_KEYS": tiles * TILE_KEYS,
        "SLICES": slices,
        "SLICE_HEADS": ceil_div(TILE_HEADS, slices),
    }
    grid = (ceil_div(spec.heads, TILE_HEADS), out.rows, splits)
    return _attend(("attend_compressed_tile",), op, context, out, values, grid)


def _attend_lanes(op: Op, context: Context, out: View) -> Dispatch:
    info = context.info
    queries = out.rows * op.spec.heads
    if "subgroups" in info.features:
        lanes, threads = "lanes_subgroup", info.subgroup_size
        grid = (min(queries, 65535), ceil_div(queries, 65535), 1)
    else:
        lanes, threads = "lanes_single", 8
        grid = (ceil_div(queries, threads), 1, 1)
    sources = (lanes, "attend_compressed_lanes")
    return _attend(sources, op, context, out, {"THREADS": threads}, grid)


def _attend(
    sources: tuple[str, ...],
    op: Op,
    context: Context,
    out: View,
    more: dict[str, float],
    grid: tuple[int, int, int],
) -> Dispatch:
    spec: CompressedSpec = op.spec
    q, raw, at = context.view(op.value(0)), op.cache(1), context.layout.offset
    assert not (q.offset | q.stride | out.offset | out.stride) % 4, (q, out)
    entries = op.cache(3) if spec.rate else raw
    # WGSL has no optional binding: where nothing is chosen, the step stands in.
    chosen = View(context.step, 0, 0, out.rows, 0)
    if op.ins[4] is not None:
        chosen = context.view(op.value(4))
    values: dict[str, float] = {
        "HEADS": spec.heads,
        "QUADS": spec.size // 4,
        "SCALE": spec.size**-0.5,
        "WINDOW": spec.window,
        "RATE": spec.rate,
        "CHOSEN": chosen.columns,
        "SEQ": at["seq"],
        "POSITION": at["position"],
        "VALID_ROWS": at["valid_rows"],
    }
    values |= _table("RAW_", raw, context) | _table("FAR_", entries, context)
    values |= places(q=q, chosen=chosen, out=out) | more
    written_out = {name: int(more[name]) for name in ("SLICE_HEADS",) if name in more}
    wgsl = unroll(compose("page_slot", "attend_compressed", *sources), written_out)
    kernel = Kernel(sources[-1], wgsl, (*READ * 6, "write"), constants(values))
    buffers = (
        q.buffer,
        context.store(raw).buffers[0],
        context.store(entries).buffers[-1],
        chosen.buffer,
        context.step,
        context.banks(op.weight(2))[0].buffer,
        out.buffer,
    )
    return Dispatch(kernel, buffers, grid)
