"""Launchers of matrix products: linear, gated_linear, and both with the norm before them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from zllm.activation import GatedSpec
from zllm.backend.contract import Op
from zllm.backend.webgpu.device import Access, Buffer, DeviceInfo, Dispatch, Kernel
from zllm.backend.webgpu.elementwise import activation, gated_dispatch, rms_norm_dispatch
from zllm.backend.webgpu.kernels import ceil_div, constants, strided_grid
from zllm.backend.webgpu.lowering import Bank, Context, View
from zllm.backend.webgpu.product_pairs import (
    CODES,
    Shape,
    few_of,
    pairs_bytes,
    pairs_dispatch,
    pairs_shape,
    takes_pairs,
    with_sizes,
)
from zllm.backend.webgpu.tuning import Few
from zllm.backend.webgpu.wgsl_format import FORMATS
from zllm.kernel.wgsl.source import compose
from zllm.linear import LinearSpec
from zllm.norm import RmsNormSpec

ACCESS: tuple[Access, ...] = ("read", "read", "read", "read", "read", "write")

ROWS_THREADS = 64  # of a workgroup that reduces over rows of experts
NO_NORM = RmsNormSpec(0.0)
LANES_TOKENS = 4  # of one thread
SHORT = frozenset({"f32", "f16", "bf16", "q4_0", "q4_1", "q8_0"})  # formats of a few lines
QUAD = 4  # lanes of the smallest subgroups: they read four quads of x together
STAGED_QUADS = 1024  # 16 KiB
FULL_THREADS = 1 << 16  # of a grid
LEAST_THREADS = 1 << 15  # of a grid; an H200 runs eight times as many at once
MOST_THREADS = 1 << 17  # of a grid whose workgroups keep x for all their rows
LEAST_SUBGROUP = 8  # the quads of a block of 32
FOLDED_TOKENS = 1  # up to which a product computes the norm of its x
TILE_ROWS, TILE_TOKENS = 64, 32
WIDE_ROWS, WIDE_TOKENS = 128, 128


@dataclass(frozen=True, slots=True)
class NormedSpec:
    """rms_norm, then the product that reads it."""

    norm: RmsNormSpec
    product: LinearSpec | GatedSpec | None


@dataclass(frozen=True, slots=True)
class Product:
    """y = x·wᵀ, with what may come before and after it."""

    x: View
    out: View  # column n is row n of all banks
    norm: Buffer | None = None
    norm_spec: RmsNormSpec = NO_NORM
    bias: Buffer | None = None
    residual: View | None = None
    factor: float = 1.0
    gated: GatedSpec | None = None


def lower_linear(op: Op, context: Context) -> list[Dispatch]:
    x, w, bias, residual = op.ins
    return _lower_linear(op, context, (x, None, w, bias, residual), NormedSpec(NO_NORM, op.spec))


def lower_norm_linear(op: Op, context: Context) -> list[Dispatch]:
    return _lower_linear(op, context, op.ins, op.spec)


def _lower_linear(
    op: Op, context: Context, operands: tuple[Any, ...], spec: NormedSpec
) -> list[Dispatch]:
    x, norm, w, bias, residual = operands
    product = Product(
        x=context.view(x),
        out=context.view(op.outs[0]),
        norm=_vector(norm, context),
        norm_spec=spec.norm,
        bias=_vector(bias, context),
        residual=None if residual is None else context.view(residual),
        factor=spec.product.scale if isinstance(spec.product, LinearSpec) else 1.0,
    )
    return dispatches(product, context.banks(w), context.scratch, context.info)


def lower_gated_linear(op: Op, context: Context) -> list[Dispatch]:
    x, w, bias = op.ins
    return _lower_gated(op, context, (x, None, w, bias), NormedSpec(NO_NORM, op.spec))


def lower_norm_gated_linear(op: Op, context: Context) -> list[Dispatch]:
    return _lower_gated(op, context, op.ins, op.spec)


def _lower_gated(
    op: Op, context: Context, operands: tuple[Any, ...], spec: NormedSpec
) -> list[Dispatch]:
    """Fused where gates and their partners lie in one bank, else a product and the activation."""
    x, norm, w, bias = operands
    assert isinstance(spec.product, GatedSpec), spec
    out = context.view(op.outs[0])
    product = Product(
        x=context.view(x),
        out=out,
        norm=_vector(norm, context),
        norm_spec=spec.norm,
        bias=_vector(bias, context),
        gated=spec.product,
    )
    banks = context.banks(w)
    if len(banks) == 1:
        return dispatches(product, banks, context.scratch, context.info)
    width = out.columns
    both = context.scratch(4 * out.rows * 2 * width)
    gate = View(both, 0, 2 * width, out.rows, width)
    up = View(both, width, 2 * width, out.rows, width)
    plain = replace(product, out=View(both, 0, 2 * width, out.rows, 2 * width), gated=None)
    parts = dispatches(plain, banks, context.scratch, context.info)
    return [*parts, gated_dispatch(gate, up, out, spec.product)]


def dispatches(
    product: Product, banks: Sequence[Bank], scratch: Callable[[int], Buffer], info: DeviceInfo
) -> list[Dispatch]:
    """For several tokens x is made ready once for all banks and workgroups: as product_pairs reads
    it, or normalised. For one token each workgroup does so by itself.
    """
    x, norm, spec = product.x, product.norm, product.norm_spec
    paired = [bank for bank in banks if takes_pairs(bank.format, x.rows, info)]
    found: list[Dispatch] = []
    pairs: Buffer | None = None
    if paired:
        format, source = paired[0].format, input_source(x, paired[0])
        pairs = scratch(pairs_bytes(x.rows, x.columns, format, info))
        found = [pairs_dispatch(x, norm, spec, source, pairs, format, info)]
    if norm is not None and x.rows > FOLDED_TOKENS and len(paired) < len(banks):
        out = View(scratch(4 * x.rows * x.columns), 0, x.columns, x.rows, x.columns)
        found.append(rms_norm_dispatch(x, norm, out, spec, info))
        product = replace(product, x=out, norm=None)
    for bank in banks:
        found.append(_dispatch(product, bank, pairs if bank in paired else None, info))
    return found


def _vector(weight: Any, context: Context) -> Buffer | None:
    """Vectors are resident as one bank of f32."""
    if weight is None:
        return None
    (bank,) = context.banks(weight)
    assert bank.format == "f32", weight
    return bank.buffer


def _dispatch(product: Product, bank: Bank, pairs: Buffer | None, info: DeviceInfo) -> Dispatch:
    """pairs: x, normalised if need be, as product_pairs reads it."""
    x, out = product.x, product.out
    norm = None if pairs else product.norm
    rows = bank.rows // 2 if product.gated else bank.rows
    residual = product.residual
    values: dict[str, float] = {
        "COLUMNS": bank.columns,
        "BLOCKS": FORMATS[bank.format].blocks(bank.columns),
        "ROWS": rows,
        "TOKENS": x.rows,
        "FIRST_ROW": bank.first_row,
        "OUT_OFFSET": out.offset,
        "OUT_STRIDE": out.stride,
        "HAS_BIAS": product.bias is not None,
        "HAS_RESIDUAL": residual is not None,
        "NORM": norm is not None,
        "EPS": product.norm_spec.eps,
        "FACTOR": product.factor,
        "GATED": product.gated is not None,
    }
    if not pairs:
        values |= {"X_OFFSET": x.offset, "X_STRIDE": x.stride}
        values["NORM_OFFSET"] = product.norm_spec.offset
    if product.gated:
        values |= activation(product.gated)
    if residual is not None:
        values |= {"RESIDUAL_OFFSET": residual.offset, "RESIDUAL_STRIDE": residual.stride}
    shape = _shape(product, bank, rows, info)
    name = shape.sources[-1]
    read = "input_pairs" if pairs else input_source(x, bank)
    decode = lanes_sources(bank.format, info) if info.software else gpu_sources(bank.format)
    wgsl = with_sizes(
        compose(read, *decode, "silu", "activation", "product", *shape.sources), shape.text
    )
    kernel = Kernel(f"{name}_{bank.format}", wgsl, ACCESS, constants(values | shape.values))
    # WGSL has no optional binding: where nothing is read, x stands in.
    source = pairs or x.buffer
    buffers = (
        bank.buffer,
        source,
        norm or source,
        product.bias or source,
        residual.buffer if residual is not None else source,
        out.buffer,
    )
    return Dispatch(kernel, buffers, shape.grid)


def gpu_sources(format: str) -> tuple[str, ...]:
    """With the unpacking that suits GPUs; decoded values are the same."""
    other = {"spread": ("unpack",), "spread_nibbles": ("unpack", "unpacked_nibbles")}
    sources = FORMATS[format].sources
    return tuple(found for name in sources for found in other.get(name, (name,)))


def lanes_sources(format: str, info: DeviceInfo) -> tuple[str, ...]:
    """Of product_lanes: how x is read, and the format."""
    sources = FORMATS[format].sources
    if not shares_x(info):
        return ("entry_alone", *sources)
    shared = ("x_shared" if name == "x_alone" else name for name in sources)
    return ("entry_shared", *shared)


def shares_x(info: DeviceInfo) -> bool:
    """SwiftShader's lanes are SSE words, and it gathers even what they all read."""
    return info.software and info.subgroup_size == QUAD


def input_source(x: View, bank: Bank) -> str:
    whole = bank.columns % FORMATS[bank.format].elements == 0 and not (x.offset | x.stride) % 4
    return "input_vec4" if whole else "input_scalar"


def _shape(product: Product, bank: Bank, rows: int, info: DeviceInfo) -> Shape:
    """What suits the device and the sizes."""
    tokens, gated, tuning = product.x.rows, product.gated is not None, info.tuning
    if info.software:
        return _lanes_shape(bank.format, rows, tokens, gated, info)
    if takes_pairs(bank.format, tokens, info):
        few = few_of(bank.format, tokens, info)
        return pairs_shape(few, bank, rows, tokens, gated, info)
    if tokens <= tuning.few_tokens:
        one = _one_shape(product, bank, rows, info) if tokens == 1 else None
        return one or _few_shape(bank, rows, tokens, gated, info)
    if tokens >= tuning.wide_tokens:
        tiles = ceil_div(rows, WIDE_ROWS // 2 if gated else WIDE_ROWS)
        grid = (min(tiles, info.max_grid), ceil_div(tokens, WIDE_TOKENS), 1)
        return Shape(
            ("product_tile_wide",),
            {"TILES": tiles},
            grid,
            {"SPAN": WIDE_TOKENS, "SPANS": WIDE_TOKENS // 64, "MINE": WIDE_TOKENS // 16},
        )
    tiles = ceil_div(rows, TILE_ROWS // 2 if gated else TILE_ROWS)
    grid = (min(tiles, info.max_grid), ceil_div(tokens, TILE_TOKENS), 1)
    return Shape(("product_tile",), {"TILES": tiles}, grid)


def _lanes_shape(format: str, rows: int, tokens: int, gated: bool, info: DeviceInfo) -> Shape:
    """Measured on SwiftShader and lavapipe."""
    shares = shares_x(info)
    threads = QUAD if shares else lanes_threads(rows)
    half = 4
    if shares:  # and compiles for seconds where much text is repeated for each row and token
        half = 6 if tokens == 1 and format in SHORT else 2
    batch = min(tokens, LANES_TOKENS)
    own = half if gated else 2 * half
    grid = (ceil_div(rows, own * threads), ceil_div(tokens, batch), 1)
    text = {"HALF": half, "BATCH": batch}
    return Shape(("product_lanes",), {"THREADS": threads}, grid, text)


def _few_shape(bank: Bank, rows: int, tokens: int, gated: bool, info: DeviceInfo) -> Shape:
    few = few_of(bank.format, tokens, info)
    spec = FORMATS[bank.format]
    quads = spec.elements // 4  # of a block
    row_quads = spec.blocks(bank.columns) * quads
    whole = max(1 << (row_quads - 1).bit_length(), 4 * quads)  # at least four lanes
    chunk = min(STAGED_QUADS >> (tokens - 1).bit_length(), whole)
    each = _team_rows(few, rows * (1 + gated), tokens, min(few.threads, chunk // quads))
    teams = ceil_div(rows, each // 2 if gated else each)
    sums = ceil_div(each * tokens, 4) + (tokens <= FOLDED_TOKENS)  # vec4s; the last is of squares
    threads = few.threads
    while sums * threads > STAGED_QUADS:
        threads //= 2
    most = min(threads, chunk // quads)
    lanes = min(few.lanes, most)
    # Few rows cannot fill a GPU but by more threads a row.
    full = LEAST_THREADS if tokens == 1 else FULL_THREADS
    while teams * lanes < full and lanes < most and 2 * lanes < spec.blocks(bank.columns):
        lanes *= 2
    text = {
        "EACH": each,
        "BATCH": tokens,
        "QUADS": quads,
        "CHUNK": chunk,
        "STAGED": max(chunk * tokens, sums * threads),
        "SUMS": sums,
        "HELD": ceil_div(chunk * tokens, threads),
    }
    values: dict[str, float] = {"THREADS": threads, "TEAMS": teams, "LANES": lanes}
    grid = strided_grid(ceil_div(teams, threads // lanes), info)
    return Shape((quads_source(bank.format), "team_row", "product_staged"), values, grid, text)


def _one_shape(product: Product, bank: Bank, rows: int, info: DeviceInfo) -> Shape | None:
    """For one token of formats whose integers are apart from their scales; None where there are
    too few rows to fill a GPU, or x is normalised and too long to be seen at once.
    """
    if bank.format not in CODES or info.subgroup_size < LEAST_SUBGROUP:
        return None
    few, gated = few_of(bank.format, 1, info), product.gated is not None
    spec = FORMATS[bank.format]
    quads = spec.elements // 4  # of a block
    blocks = spec.blocks(bank.columns)
    chunk = min(STAGED_QUADS, max(1 << (blocks * quads - 1).bit_length(), 4 * quads))
    chunks = ceil_div(blocks * quads, chunk)
    lanes = min(few.lanes, info.subgroup_size, chunk // quads)
    each = few.rows
    while each > 2 and rows * (1 + gated) // each * lanes < LEAST_THREADS:
        each //= 2
    teams = ceil_div(rows, each // 2 if gated else each)
    spread = 2 * lanes < blocks and teams * lanes < LEAST_THREADS
    if spread or (chunks > 1 and product.norm is not None):
        return None
    # What is brought in again and again should serve more rows each time.
    threads = few.threads if chunks == 1 else max(few.threads, min(256, info.max_invocations))
    text = {
        "EACH": each,
        "QUADS": quads,
        "CHUNK": chunk,
        "CHUNKS": chunks,
        "STAGED": max(chunk, threads // 4),
        "HELD": ceil_div(chunk, threads),
    }
    values: dict[str, float] = {"THREADS": threads, "TEAMS": teams, "LANES": lanes}
    groups = ceil_div(teams, threads // lanes)
    if chunks == 1:  # each workgroup with as many teams as the others
        groups = ceil_div(groups, ceil_div(groups * threads, MOST_THREADS))
    return Shape(
        (f"codes_{bank.format}", "team_row", "product_planes"),
        values,
        strided_grid(groups, info),
        text,
    )


def _team_rows(few: Few, rows: int, tokens: int, lanes: int) -> int:
    """Those of the setting; for several tokens fewer, where else a GPU would not be full."""
    each = few.rows
    while tokens > FOLDED_TOKENS and each > 2 and rows // each * lanes < FULL_THREADS:
        each //= 2
    return each


def quads_source(format: str) -> str:
    """The source that decodes whole blocks quad by quad."""
    if format in ("f16", "bf16"):
        return "quads_floats"
    decode = FORMATS[format].sources[-1]
    return decode.replace("decode", "quads")


def lanes_threads(rows: int) -> int:
    """Enough workgroups for several cores, yet whole SIMD words. Measured on lavapipe."""
    return 8 if rows < 4096 else 16
