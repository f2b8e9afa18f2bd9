"""Launchers of the products of the chosen experts.

Pairs of a row and one of its experts are worked on one by one where there are few, else in the
order of their experts, so that a weight is read once for several pairs. Experts may lie in several
banks, cut at whole experts: each bank's dispatch does its own experts' pairs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from zllm.backend.contract import Op
from zllm.backend.webgpu.device import Access, Buffer, DeviceInfo, Dispatch, Kernel
from zllm.backend.webgpu.elementwise import activation, places
from zllm.backend.webgpu.kernels import ceil_div, constants, reduction, strided_grid
from zllm.backend.webgpu.lowering import Bank, Context, View
from zllm.backend.webgpu.product import ROWS_THREADS, lanes_threads
from zllm.backend.webgpu.wgsl_format import FORMATS
from zllm.errors import BackendError
from zllm.kernel.wgsl.source import compose
from zllm.kernel.wgsl.unroll import unroll
from zllm.moe.experts import ExpertsSpec

READ: tuple[Access, ...] = ("read",)
MOST_SORTED = 1024  # experts: of an array in workgroup memory
# Pairs of an average expert from which it pays to sort them, and of tiles: few if that holds an
# average expert's.
SORTED_PAIRS = 1.5
FEW_PAIRS, TILE_PAIRS, TILE_ROWS = (4, 8), 32, 64
# Fewer workgroups of 64 threads than this leave a large GPU idle: they get more threads.
FULL_GROUPS = 2048


@dataclass(frozen=True, slots=True)
class Shape:
    """The kernel that suits the device and the sizes."""

    name: str
    sources: tuple[str, ...]
    constants: dict[str, float]  # of its own
    grid: tuple[int, int, int]
    text: dict[str, int] = field(default_factory=dict)  # how often loops are written out


def lower_experts(op: Op, context: Context) -> list[Dispatch]:
    spec: ExpertsSpec = op.spec
    x, chosen = context.view(op.value(0)), context.view(op.value(1)).columns
    pairs, info = x.rows * chosen, context.info
    products_bytes = 4 * pairs * max(x.columns, spec.width)
    sortable = spec.experts <= MOST_SORTED and products_bytes <= info.max_binding_bytes
    if info.software or not sortable or pairs < SORTED_PAIRS * spec.experts:
        return _one_by_one(op, context, pairs)
    return _sorted(op, context, pairs)


def _banks(op: Op, context: Context, *, gated: bool) -> list[tuple[Bank, int, int]]:
    """(bank, first expert, experts). BackendError if an expert's rows are in two banks."""
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


def _one_by_one(op: Op, context: Context, pairs: int) -> list[Dispatch]:
    """To the gated inner values of every pair, then to the rows' weighted sums."""
    width = op.spec.width
    inner = View(context.scratch(4 * pairs * width), 0, width, pairs, width)
    x, out = context.view(op.value(0)), context.view(op.outs[0])
    first = [
        _pairs(op, context, x, inner, bank, gated=True, add=False)
        for bank in _banks(op, context, gated=True)
    ]
    second = [
        _pairs(op, context, inner, out, bank, gated=False, add=bank[1] > 0)
        for bank in _banks(op, context, gated=False)
    ]
    return first + second


def _pairs(
    op: Op,
    context: Context,
    x: View,
    out: View,
    banked: tuple[Bank, int, int],
    *,
    gated: bool,
    add: bool,
) -> Dispatch:
    bank = banked[0]
    ids, weights = context.view(op.value(1)), context.view(op.value(2))
    values = _values(op, x, banked, out.columns, gated=gated)
    values |= {"ADD": add, "VALID_ROWS": context.layout.offset["valid_rows"]}
    values |= places(ids=ids, weights=weights, out=out)
    shape = product_shape(out, gated, context.info)
    aside = (_bias(op, context, gated, x), ids.buffer, weights.buffer, context.step)
    return product(bank, x, "experts", shape, values, (*aside, out.buffer))


def _values(
    op: Op, x: View, banked: tuple[Bank, int, int], rows: int, *, gated: bool
) -> dict[str, float]:
    """What experts.wgsl and experts_sorted.wgsl have in common."""
    spec: ExpertsSpec = op.spec
    _, first, count = banked
    return {
        "ROWS": rows,
        "CHOSEN": op.value(1).shape[1],
        "GATED": gated,
        "INTERLEAVED": spec.interleaved,
        "HAS_BIAS": op.ins[5] is not None,
        "FIRST_EXPERT": first,
        "BANK_EXPERTS": count,
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
    values = values | shape.constants
    values |= {
        "COLUMNS": bank.columns,
        "X_OFFSET": x.offset,
        "X_STRIDE": x.stride,
        "BLOCKS": FORMATS[bank.format].blocks(bank.columns),
    }
    decode = FORMATS[bank.format].sources
    wgsl = compose(_input(x, bank), *decode, "silu", "activation", header, *shape.sources)
    access: tuple[Access, ...] = (*READ * (2 + len(buffers)), "write")
    name = f"{shape.name}_{bank.format}"
    kernel = Kernel(name, unroll(wgsl, shape.text), access, constants(values))
    # For the norm that experts do not have x stands in.
    return Dispatch(kernel, (bank.buffer, x.buffer, x.buffer, *buffers), shape.grid)


def product_shape(out: View, gated: bool, info: DeviceInfo) -> Shape:
    """Of the kernel for units one by one."""
    units = min(out.rows, info.max_grid)
    if info.software:
        threads = lanes_threads(out.columns)
        groups = ceil_div(out.columns, (4 if gated else 8) * threads)
        grid = (groups, units, 1)
        return Shape("experts_lanes", ("experts_lanes",), {"THREADS": threads}, grid)
    groups = ceil_div(out.columns, 2 if gated else 4)
    threads = ROWS_THREADS
    while threads < 256 and groups * units * threads < FULL_GROUPS * ROWS_THREADS:
        threads *= 2
    more: dict[str, float] = {"THREADS": threads, "GROUPS": groups}
    grid = (min(groups, info.max_grid), units, 1)
    return Shape("experts_rows", (reduction(info), "experts_rows"), more, grid)


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
                values | _values(op, source, banked, to.columns, gated=gated),
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
