"""Launchers of the products of the chosen experts.

Pairs of a row and one of its experts are worked on one by one where there are few, else in the
order of their experts, so that a weight is read once for several pairs. Experts may lie in several
banks, cut at whole experts: a dispatch does the pairs of its banks' experts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from zllm.backend.contract import Op
from zllm.backend.webgpu.device import Access, Buffer, DeviceInfo, Dispatch, Kernel
from zllm.backend.webgpu.elementwise import activation, places
from zllm.backend.webgpu.kernels import ceil_div, constants, reduction, strided_grid
from zllm.backend.webgpu.lowering import Bank, Context, View
from zllm.backend.webgpu.product import (
    LEAST_THREADS,
    ROWS_THREADS,
    STAGED_QUADS,
    gpu_sources,
    lanes_threads,
    quads_source,
)
from zllm.backend.webgpu.wgsl_format import FORMATS
from zllm.errors import BackendError
from zllm.kernel.wgsl.several import several
from zllm.kernel.wgsl.source import compose
from zllm.kernel.wgsl.unroll import unroll
from zllm.moe.experts import ExpertsSpec

READ: tuple[Access, ...] = ("read",)
MOST_SORTED = 1024  # experts: of an array in workgroup memory
# Pairs of an average expert from which it pays to sort them, and of tiles: few if that holds an
# average expert's.
SORTED_PAIRS = 1.5
FEW_PAIRS, TILE_PAIRS, TILE_ROWS = (4, 8), 32, 64
# Of experts_staged: threads of a workgroup, matrix rows of a team, lanes of a team. As dense
# products of one token like it (tuning.py); not measured for experts.
STAGED_THREADS, STAGED_ROWS, STAGED_LANES = 128, 4, 32
# Of banks, beside five other buffers. A round that binds more than eight is refused.
BANK_BINDINGS = (0, 2, 5)
NORM_BUFFER = re.compile(r"^@group\(0\) @binding\(2\) var<storage, read> norm: .*$", re.M)

Banked = tuple[Bank, int, int]  # with its first expert and the number of its experts


@dataclass(frozen=True, slots=True)
class Shape:
    """The kernel that suits the device and the sizes."""

    name: str
    sources: tuple[str, ...]
    constants: dict[str, float]  # of its own
    grid: tuple[int, int, int]
    # Sizes of arrays, and how often loops are written out.
    text: dict[str, int] = field(default_factory=dict)
    root: str = ""  # the function that reads the bank, see several.py


def lower_experts(op: Op, context: Context) -> list[Dispatch]:
    spec: ExpertsSpec = op.spec
    x, chosen = context.view(op.value(0)), context.view(op.value(1)).columns
    pairs, info = x.rows * chosen, context.info
    products_bytes = 4 * pairs * max(x.columns, spec.width)
    sortable = spec.experts <= MOST_SORTED and products_bytes <= info.max_binding_bytes
    if info.software or not sortable or pairs < SORTED_PAIRS * spec.experts:
        return _one_by_one(op, context, pairs, summed=info.software or not sortable)
    return _sorted(op, context, pairs)


def _banks(op: Op, context: Context, *, gated: bool) -> list[Banked]:
    """BackendError if an expert's rows are in two banks."""
    spec: ExpertsSpec = op.spec
    weight: Any = op.ins[3 if gated else 4]
    banks = context.banks(weight)
    rows = banks[-1].first_row + banks[-1].rows
    own = rows // spec.experts
    if any(bank.first_row % own or bank.rows % own for bank in banks):
        raise BackendError(
            f"{weight.name}: rows of one expert lie in different buffers "
            f"({', '.join(sorted({bank.format for bank in banks}))}), and the WebGPU kernels read "
            "one; use --backend oracle"
        )
    return [(bank, bank.first_row // own, bank.rows // own) for bank in banks]


def _one_by_one(op: Op, context: Context, pairs: int, *, summed: bool) -> list[Dispatch]:
    """To the gated inner values of every pair, then to the rows' weighted sums.

    summed: by the second product itself, else by a kernel after it.
    """
    width = op.spec.width
    inner = View(context.scratch(4 * pairs * width), 0, width, pairs, width)
    x, out = context.view(op.value(0)), context.view(op.outs[0])
    first = _pairs(op, context, x, inner, gated=True)
    if summed:
        return first + _pairs(op, context, inner, out, gated=False, summed=True)
    products = View(context.scratch(4 * pairs * out.columns), 0, out.columns, pairs, out.columns)
    second = _pairs(op, context, inner, products, gated=False)
    return [*first, *second, _sum(op, context, products, out)]


def _pairs(
    op: Op, context: Context, x: View, out: View, *, gated: bool, summed: bool = False
) -> list[Dispatch]:
    runs = _runs(_banks(op, context, gated=gated))
    return [_bound(op, context, x, out, run, gated=gated, summed=summed) for run in runs]


def _runs(banks: list[Banked]) -> list[list[Banked]]:
    """Neighbours of one format, as many as a dispatch can bind."""
    runs: list[list[Banked]] = []
    for banked in banks:
        run = runs[-1] if runs else []
        if run and len(run) < len(BANK_BINDINGS) and run[0][0].format == banked[0].format:
            run.append(banked)
        else:
            runs.append([banked])
    return runs


def _bound(
    op: Op,
    context: Context,
    x: View,
    out: View,
    run: list[Banked],
    *,
    gated: bool,
    summed: bool,
) -> Dispatch:
    """The products of one run's experts."""
    (bank, first, _), several_banks = run[0], len(run) > 1
    ids, weights = context.view(op.value(1)), context.view(op.value(2))
    assert ids.buffer is weights.buffer, "results of one op lie side by side"
    pairs = ids.rows * ids.columns // out.rows  # of a row of results
    experts = sum(count for _, _, count in run)
    values = _values(op, out.columns, first, experts, gated=gated)
    values |= {"TOGETHER": pairs, "ADD": summed and first > 0}
    values |= {"VALID_ROWS": context.layout.offset["valid_rows"]}
    values |= places(ids=ids, weights=weights, out=out)
    for i, (_, at, _) in enumerate(run):
        values[f"BANK_FIRST_{i}" if several_banks else "BANK_FIRST"] = at
    shape = product_shape(bank, out, gated, context.info, together=summed)
    wgsl = NORM_BUFFER.sub("", _text(bank, x, "experts", shape)).replace("norm[", "x[")
    if several_banks:
        wgsl = several(wgsl, shape.root, BANK_BINDINGS[: len(run)])
    aside = (_bias(op, context, gated, x), ids.buffer)
    # What stands at a binding of a bank that is not there is not read.
    one, two, three = ([bank.buffer for bank, _, _ in run] + 2 * [bank.buffer])[:3]
    buffers = (one, x.buffer, two, *aside, three, context.step, out.buffer)
    return _dispatch(bank, x, shape, wgsl, values, buffers)


def _values(op: Op, rows: int, first: int, experts: int, *, gated: bool) -> dict[str, float]:
    """What experts.wgsl and experts_sorted.wgsl have in common."""
    spec: ExpertsSpec = op.spec
    return {
        "ROWS": rows,
        "CHOSEN": op.value(1).shape[1],
        "GATED": gated,
        "INTERLEAVED": spec.interleaved,
        "HAS_BIAS": op.ins[5] is not None,
        "FIRST_EXPERT": first,
        "SOME_EXPERTS": experts,
    } | activation(spec.gated)


def _bias(op: Op, context: Context, gated: bool, x: View) -> Buffer:
    """WGSL has no optional binding: where nothing is read, x stands in."""
    bias: Any = op.ins[5 if gated else 6]
    return x.buffer if bias is None else context.banks(bias)[0].buffer


def product(
    bank: Bank,
    x: View,
    header: str,
    shape: Shape,
    values: dict[str, float],
    buffers: tuple[Buffer, ...],
) -> Dispatch:
    """A product of rows of x with rows of the bank, as `header` pairs them; it writes the last."""
    # For the norm that experts do not have x stands in.
    buffers = (bank.buffer, x.buffer, x.buffer, *buffers)
    return _dispatch(bank, x, shape, _text(bank, x, header, shape), values, buffers)


def _text(bank: Bank, x: View, header: str, shape: Shape) -> str:
    lanes = shape.name == "experts_lanes"
    decode = FORMATS[bank.format].sources if lanes else gpu_sources(bank.format)
    wgsl = compose(_input(x, bank), *decode, "silu", "activation", header, *shape.sources)
    sizes = "".join(f"const {name}: u32 = {value}u;\n" for name, value in shape.text.items())
    return sizes + unroll(wgsl, shape.text)


def _dispatch(
    bank: Bank,
    x: View,
    shape: Shape,
    wgsl: str,
    values: dict[str, float],
    buffers: tuple[Buffer, ...],
) -> Dispatch:
    values = values | shape.constants
    values |= {
        "COLUMNS": bank.columns,
        "X_OFFSET": x.offset,
        "X_STRIDE": x.stride,
        "BLOCKS": FORMATS[bank.format].blocks(bank.columns),
    }
    access: tuple[Access, ...] = (*READ * (len(buffers) - 1), "write")
    kernel = Kernel(f"{shape.name}_{bank.format}", wgsl, access, constants(values))
    return Dispatch(kernel, buffers, shape.grid)


def product_shape(
    bank: Bank, out: View, gated: bool, info: DeviceInfo, *, together: bool = False
) -> Shape:
    """Of the kernel for units one by one; together: where a unit is several pairs."""
    units = min(out.rows, info.max_grid)
    if info.software or together:
        threads = lanes_threads(out.columns)
        groups = ceil_div(out.columns, (4 if gated else 8) * threads)
        grid = (groups, units, 1)
        more: dict[str, float] = {"THREADS": threads}
        return Shape("experts_lanes", ("experts_lanes",), more, grid, root="eight_rows")
    spec = FORMATS[bank.format]
    quads, blocks = spec.elements // 4, spec.blocks(bank.columns)
    whole = max(1 << (blocks * quads - 1).bit_length(), 4 * quads)  # at least four lanes
    chunk = min(STAGED_QUADS, whole)
    teams = ceil_div(out.columns, STAGED_ROWS // 2 if gated else STAGED_ROWS)
    most = min(STAGED_THREADS, chunk // quads)
    lanes = min(STAGED_LANES, most)
    while teams * units * lanes < LEAST_THREADS and lanes < most and 2 * lanes < blocks:
        lanes *= 2
    # The same text for all sizes, so that a small case may speak for it (trust.py).
    text = {
        "EACH": STAGED_ROWS,
        "QUADS": quads,
        "STAGED": STAGED_QUADS,
        "HELD": STAGED_QUADS // STAGED_THREADS,
    }
    more = {"THREADS": STAGED_THREADS, "TEAMS": teams, "LANES": lanes, "CHUNK": chunk}
    grid = (min(ceil_div(teams * lanes, STAGED_THREADS), info.max_grid), units, 1)
    sources = (quads_source(bank.format), "experts_staged")
    return Shape("experts_staged", sources, more, grid, text, "sum_teams")


def _input(x: View, bank: Bank) -> str:
    whole = bank.columns % FORMATS[bank.format].elements == 0 and not (x.offset | x.stride) % 4
    return "input_vec4" if whole else "input_scalar"


def _sorted(op: Op, context: Context, pairs: int) -> list[Dispatch]:
    """Pairs in order, their gated inner values, their products where they were, the rows' sums."""
    spec: ExpertsSpec = op.spec
    x, out = context.view(op.value(0)), context.view(op.outs[0])
    size = tile_size(pairs / spec.experts)
    tiles = min(pairs, pairs // size + spec.experts)
    order = 1 + 3 * tiles
    plan = context.scratch(4 * (order + pairs))
    inner = View(context.scratch(4 * pairs * spec.width), 0, spec.width, pairs, spec.width)
    products = View(context.scratch(4 * pairs * out.columns), 0, out.columns, pairs, out.columns)

    def part(source: View, to: View, gated: bool) -> list[Dispatch]:
        weights = context.view(op.value(2))
        values: dict[str, float] = {"ORDER": order} | places(weights=weights, out=to)
        shape = tiles_shape(to.columns, gated, size, tiles, context.info)
        buffers = (_bias(op, context, gated, source), plan, weights.buffer, to.buffer)
        return [
            product(
                banked[0],
                source,
                "experts_sorted",
                shape,
                values | _values(op, to.columns, *banked[1:], gated=gated),
                buffers,
            )
            for banked in _banks(op, context, gated=gated)
        ]

    return [
        _sort(op, context, plan, size, order),
        *part(x, inner, True),
        *part(inner, products, False),
        _sum(op, context, products, out),
    ]


def tile_size(average: float) -> int:
    """Pairs of a tile, where an average expert has so many."""
    return next((few for few in FEW_PAIRS if average <= few), TILE_PAIRS)


def tiles_shape(rows: int, gated: bool, size: int, tiles: int, info: DeviceInfo) -> Shape:
    """Of the kernel for tiles of `size` pairs."""
    along = min(tiles, info.max_grid)
    if size < TILE_PAIRS:
        groups = ceil_div(rows, 2 if gated else 4)
        more: dict[str, float] = {"THREADS": ROWS_THREADS, "GROUPS": groups}
        grid = (min(groups, info.max_grid), along, 1)
        sources = (reduction(info), "experts_few")
        return Shape("experts_few", sources, more, grid, {"TOKENS": size})
    row_tiles = ceil_div(rows, TILE_ROWS // 2 if gated else TILE_ROWS)
    grid = (min(row_tiles, info.max_grid), along, 1)
    return Shape("experts_tile", ("experts_tile",), {"TILES": row_tiles}, grid)


def _sort(op: Op, context: Context, plan: Buffer, size: int, order: int) -> Dispatch:
    ids = context.view(op.value(1))
    values: dict[str, float] = {
        "EXPERTS": op.spec.experts,
        "CHOSEN": ids.columns,
        "TOKENS": size,
        "ORDER": order,
        "VALID_ROWS": context.layout.offset["valid_rows"],
    } | places(ids=ids)
    access: tuple[Access, ...] = ("read", "read", "write")
    kernel = Kernel("experts_sort", compose("experts_sort"), access, constants(values))
    return Dispatch(kernel, (ids.buffer, context.step, plan), (1, 1, 1))


def _sum(op: Op, context: Context, products: View, out: View) -> Dispatch:
    ids = context.view(op.value(1))
    values: dict[str, float] = {
        "COLUMNS": out.columns,
        "CHOSEN": ids.columns,
        "EXPERTS": op.spec.experts,
        "VALID_ROWS": context.layout.offset["valid_rows"],
    } | places(ids=ids, out=out)
    access: tuple[Access, ...] = ("read", "read", "read", "write")
    kernel = Kernel("experts_sum", compose("experts_sum"), access, constants(values))
    grid = strided_grid(ceil_div(out.rows * out.columns, 64), context.info)
    return Dispatch(kernel, (products.buffer, ids.buffer, context.step, out.buffer), grid)
