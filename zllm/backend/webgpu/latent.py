"""Launchers of multi-head latent attention, in its absorbed form: all heads read one latent.

Queries absorb U_h, meet the latents, and V_h unfolds what they mix: three dispatches, and one more
where a row's keys are dealt to several workgroups.
"""

from __future__ import annotations

from dataclasses import dataclass

from zllm.attention.mla import MlaSpec
from zllm.backend.contract import Cache, Op, Weight
from zllm.backend.webgpu.device import Access, Buffer, DeviceInfo, Dispatch, Kernel
from zllm.backend.webgpu.elementwise import places
from zllm.backend.webgpu.kernels import ceil_div, constants, reduction, strided_grid
from zllm.backend.webgpu.lowering import Bank, Context, View
from zllm.backend.webgpu.product import ROWS_THREADS
from zllm.backend.webgpu.wgsl_format import FORMATS
from zllm.errors import BackendError
from zllm.kernel.wgsl.source import compose
from zllm.kernel.wgsl.unroll import unroll

MAX_RANK = 512  # a thread sums four numbers of it
GROUP_HEADS, GROUP_KEYS = 16, 64  # of latent_attend_group
# latent_attend_few: up to so many keys of all rows it ends sooner, but each latent is read by four
# times as many workgroups; its threads hold QUADS / LANES quads of four queries.
FEW_HEADS, FEW_KEYS, FEW_THREADS, FEW_LANES = 4, 16, 256, 32
MOST_FEW_KEYS, MOST_FEW_QUADS = 16384, 160
# More workgroups than FULL_GROUPS occupy a large GPU anyway; each split costs latent_combine.
MAX_SPLITS, FULL_GROUPS = 64, 512
# llvmpipe leaves all loops of a thread after 65,535 iterations in total: a fourth of LANES_KEYS
# times twice the quads of the largest latent stay below.
LANES_KEYS = 512
SCRATCH_BYTES = 64 << 20  # of one array; more rows take turns
ABSORB_PARTS, ABSORB_TOKENS = 8, 4
UNFOLD_ROWS, UNFOLD_TOKENS = 4, 8
LANES_THREADS, LANES_TOKENS = 8, 4
READ: tuple[Access, ...] = ("read",)


@dataclass(frozen=True, slots=True)
class Tile:
    """Consecutive rows of a round, and what the kernels leave to each other for them."""

    first: int
    rows: int
    queries: Buffer  # f32 [rows, H, R + r]
    parts: Buffer  # f32 [rows, H, splits, 4 + R] with several splits, else `mixed`
    mixed: Buffer  # f32 [rows, H, R]


def lower_latent_append(op: Op, context: Context) -> list[Dispatch]:
    rotated = None if op.ins[1] is None else context.view(op.value(1))
    return [append(context.view(op.value(0)), rotated, op.cache(2), context)]


def append(latent: View, rotated: View | None, cache: Cache, context: Context) -> Dispatch:
    """One or two views, side by side, to the rows' slots."""
    turned = rotated.columns if rotated else 0
    # WGSL has no optional binding: without a rotated key the latent stands in.
    rotated = rotated or latent
    (latents,) = context.store(cache).buffers
    at = context.layout.offset
    values: dict[str, float] = {
        "RANK": latent.columns,
        "TURNED": turned,
        "ROW_SLOT": at[f"{cache.group}.row_slot"],
        "VALID_ROWS": at["valid_rows"],
    } | places(latent=latent, rotated=rotated)
    access: tuple[Access, ...] = (*READ * 3, "write")
    kernel = Kernel("latent_append", compose("latent_append"), access, constants(values))
    buffers = (latent.buffer, rotated.buffer, context.step, latents)
    numbers = latent.rows * (latent.columns + turned)
    return Dispatch(kernel, buffers, strided_grid(ceil_div(numbers, 64), context.info))


def missing_attend_latent(op: Op, info: DeviceInfo) -> str | None:
    spec: MlaSpec = op.spec
    if spec.rank % 4 or spec.rotated % 4 or spec.rank > MAX_RANK:
        return (
            f"a latent of {spec.rank} and a rotated key of {spec.rotated} numbers: both must be "
            f"multiples of 4, and the latent at most {MAX_RANK}"
        )
    return None


def lower_attend_latent(op: Op, context: Context) -> list[Dispatch]:
    spec: MlaSpec = op.spec
    rows = op.outs[0].shape[0]
    splits = split_count(spec, rows, _keys(op, context), context.info)
    width = max(spec.rank + spec.rotated, (spec.rank + 4) * splits if splits > 1 else 0)
    limit = min(SCRATCH_BYTES, context.info.max_binding_bytes)
    grid = context.info.max_grid * LANES_THREADS // (spec.heads * splits)
    most = min(rows, max(min(limit // (4 * spec.heads * width), grid), 1), context.info.max_grid)
    queries, mixed = (
        context.scratch(4 * most * spec.heads * numbers)
        for numbers in (spec.rank + spec.rotated, spec.rank)
    )
    parts = context.scratch(4 * most * spec.heads * width) if splits > 1 else mixed
    bank = _one_bank(op.weight(1), context)
    dispatches: list[Dispatch] = []
    for first in range(0, rows, most):
        tile = Tile(first, min(most, rows - first), queries, parts, mixed)
        dispatches += [_absorb(op, context, bank, tile), _attend(op, context, tile, splits)]
        if splits > 1:
            dispatches.append(_combine(op, context, tile, splits))
        dispatches.append(_unfold(op, context, bank, tile))
    return dispatches


def _keys(op: Op, context: Context) -> int:
    """The most keys of a row: positions are chosen once at most, and padding comes last."""
    context_keys = context.key.context
    return context_keys if op.ins[3] is None else min(context_keys, _chosen(op, context).columns)


def _chosen(op: Op, context: Context) -> View:
    return context.view(op.value(3))


def split_count(spec: MlaSpec, rows: int, keys: int, info: DeviceInfo) -> int:
    """Into how many workgroups a row's keys are dealt."""
    if info.software:
        return ceil_div(keys, LANES_KEYS)
    heads, at_once = (GROUP_HEADS, GROUP_KEYS)
    if has_few(spec, rows, keys):
        heads, at_once = (FEW_HEADS, FEW_KEYS)
    groups = rows * ceil_div(spec.heads, heads)
    return max(1, min(ceil_div(keys, at_once), MAX_SPLITS, FULL_GROUPS // groups))


def has_few(spec: MlaSpec, rows: int, keys: int) -> bool:
    return rows * keys <= MOST_FEW_KEYS and spec.rank + spec.rotated <= 4 * MOST_FEW_QUADS


def _absorb(op: Op, context: Context, bank: Bank, tile: Tile) -> Dispatch:
    spec: MlaSpec = op.spec
    q = context.view(op.value(0))
    format = FORMATS[bank.format]
    blocks = format.blocks(bank.columns)
    # Parts of eight elements, each two quads.
    parts = blocks * format.elements // 8
    values: dict[str, float] = {
        "BLOCKS": blocks,
        "NOPE": spec.nope,
        "VALUE": spec.value,
        "RANK_QUADS": spec.rank // 4,
        "QUADS": (spec.rank + spec.rotated) // 4,
        "SCALE": spec.scale,
    }
    values |= _shared(op, context, tile) | places(q=q)
    shape, across = ("latent_absorb_group", ABSORB_PARTS)
    if context.info.software:
        shape, across = ("latent_absorb_lanes", LANES_THREADS)
    tokens = ABSORB_TOKENS if context.info.software else tile_of(tile.rows, ABSORB_TOKENS)
    wgsl = tiled(compose("input_none", *format.sources, "latent_absorb", shape), tokens)
    access: tuple[Access, ...] = (*READ * 3, "write")
    kernel = Kernel(f"{shape}_{bank.format}", wgsl, access, constants(values))
    grid = (ceil_div(parts, across), ceil_div(tile.rows, tokens), spec.heads)
    return Dispatch(kernel, (bank.buffer, q.buffer, context.step, tile.queries), grid)


def tile_of(rows: int, most: int) -> int:
    """Rows that share a decoded weight: a power of two, as each is a kernel of its own."""
    return min(1 << (rows - 1).bit_length(), most)


def tiled(wgsl: str, tokens: int) -> str:
    return f"const TILE: u32 = {tokens}u;\n" + unroll(wgsl, {"TILE": tokens})


def _shared(op: Op, context: Context, tile: Tile) -> dict[str, float]:
    return {
        "HEADS": op.spec.heads,
        "FIRST_ROW": tile.first,
        "TOKENS": tile.rows,
        "VALID_ROWS": context.layout.offset["valid_rows"],
    }


def _attend(op: Op, context: Context, tile: Tile, splits: int) -> Dispatch:
    info, heads, keys = context.info, op.spec.heads, _keys(op, context)
    more = {"SPLITS": splits, "SPLIT_KEYS": ceil_div(keys, splits * GROUP_KEYS) * GROUP_KEYS}
    if not info.software and has_few(op.spec, op.outs[0].shape[0], keys):
        more["SPLIT_KEYS"] = ceil_div(keys, splits * FEW_KEYS) * FEW_KEYS
        grid = (ceil_div(heads, FEW_HEADS), tile.rows, splits)
        return _mix(op, context, tile, ("latent_attend", "latent_attend_few"), more, grid)
    if not info.software:
        grid = (ceil_div(heads, GROUP_HEADS), tile.rows, splits)
        return _mix(op, context, tile, ("latent_attend", "latent_attend_group"), more, grid)
    units = tile.rows * heads * splits
    if "subgroups" in info.features:
        lanes, more["THREADS"] = "lanes_subgroup", info.subgroup_size
        grid = (min(units, 65535), ceil_div(units, 65535), 1)
    else:
        lanes, more["THREADS"] = "lanes_single", LANES_THREADS
        grid = (ceil_div(units, LANES_THREADS), 1, 1)
    return _mix(op, context, tile, ("latent_attend", lanes, "latent_attend_lanes"), more, grid)


def _mix(
    op: Op,
    context: Context,
    tile: Tile,
    sources: tuple[str, ...],
    more: dict[str, int],
    grid: tuple[int, int, int],
) -> Dispatch:
    spec, cache = op.spec, op.cache(2)
    at, entries = context.layout.offset, context.layout.table_entries
    store = context.store(cache)
    chosen = None if op.ins[3] is None else _chosen(op, context)
    values: dict[str, float] = {
        "QUADS": (spec.rank + spec.rotated) // 4,
        "RANK_QUADS": spec.rank // 4,
        "HAS_CHOSEN": chosen is not None,
        "CHOSEN": _keys(op, context) if chosen else 0,
        "CHOSEN_OFFSET": chosen.offset if chosen else 0,
        "CHOSEN_STRIDE": chosen.stride if chosen else 0,
        "SEQ": at["seq"],
        "POSITION": at["position"],
        "TABLE": at[f"{cache.group}.table"],
        "ENTRIES": entries[cache.group],
        "PAGE_SLOTS": store.page_slots,
    }
    values |= _shared(op, context, tile) | more
    access: tuple[Access, ...] = (*READ * 4, "write")
    lanes_quads = ceil_div(spec.rank + spec.rotated, 4 * FEW_LANES)
    slice_keys = ceil_div(FEW_KEYS, FEW_THREADS // (spec.rank // 4))
    wgsl = unroll(compose(*sources), {"EACH": lanes_quads, "VALUES": slice_keys})
    kernel = Kernel(sources[-1], wgsl, access, constants(values))
    # WGSL has no optional binding: without a choice the step stands in.
    positions = chosen.buffer if chosen else context.step
    buffers = (tile.queries, store.buffers[0], context.step, positions, tile.parts)
    return Dispatch(kernel, buffers, grid)


def _combine(op: Op, context: Context, tile: Tile, splits: int) -> Dispatch:
    quads = op.spec.rank // 4
    values: dict[str, float] = {"RANK_QUADS": quads, "SPLITS": splits}
    values |= _shared(op, context, tile)
    access: tuple[Access, ...] = (*READ * 2, "write")
    kernel = Kernel(
        "latent_combine", unroll(compose("latent_combine"), {}), access, constants(values)
    )
    grid = strided_grid(ceil_div(tile.rows * op.spec.heads * quads, 64), context.info)
    return Dispatch(kernel, (tile.parts, context.step, tile.mixed), grid)


def _unfold(op: Op, context: Context, bank: Bank, tile: Tile) -> Dispatch:
    spec: MlaSpec = op.spec
    info, out = context.info, context.view(op.outs[0])
    format = FORMATS[bank.format]
    values: dict[str, float] = {
        "COLUMNS": bank.columns,
        "X_STRIDE": bank.columns,
        "BLOCKS": format.blocks(bank.columns),
        "NOPE": spec.nope,
        "VALUE": spec.value,
    }
    values |= _shared(op, context, tile) | places(out=out)
    sources: tuple[str, ...]
    tokens = LANES_TOKENS if info.software else tile_of(tile.rows, UNFOLD_TOKENS)
    if info.software:
        shape, sources = "latent_unfold_lanes", ("latent_unfold_lanes",)
        across = ceil_div(spec.value, LANES_THREADS)
        grid = (across, ceil_div(tile.rows, tokens), spec.heads)
    else:
        shape, sources = "latent_unfold_rows", (reduction(info), "latent_unfold_rows")
        values["THREADS"] = ROWS_THREADS
        across = ceil_div(spec.value, UNFOLD_ROWS)
        grid = (across, ceil_div(tile.rows, tokens), spec.heads)
    whole = bank.columns % format.elements == 0
    x4 = "input_vec4" if whole else "input_scalar"
    wgsl = tiled(compose(x4, *format.sources, "latent_unfold", *sources), tokens)
    access: tuple[Access, ...] = (*READ * 4, "write")
    kernel = Kernel(f"{shape}_{bank.format}", wgsl, access, constants(values))
    # The product has no norm: where nothing is read, x stands in.
    buffers = (bank.buffer, tile.mixed, tile.mixed, context.step, out.buffer)
    return Dispatch(kernel, buffers, grid)


def _one_bank(weight: Weight, context: Context) -> Bank:
    banks = context.banks(weight)
    if len(banks) > 1:
        raise BackendError(
            f"{weight.name} lies in {len(banks)} buffers "
            f"({', '.join(sorted({bank.format for bank in banks}))}; {context.info.name} binds at "
            f"most {context.info.max_binding_bytes / 2**20:.0f} MiB), and the WebGPU kernels read "
            "one; use --backend oracle"
        )
    return banks[0]
