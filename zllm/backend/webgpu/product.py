"""Launchers of matrix products: linear, gated_linear, and both with the norm before them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from zllm.activation import GatedSpec
from zllm.backend.contract import Op
from zllm.backend.webgpu.device import Access, Buffer, DeviceInfo, Dispatch, Kernel
from zllm.backend.webgpu.elementwise import activation, gated_dispatch
from zllm.backend.webgpu.kernels import ceil_div, constants, reduction, strided_grid
from zllm.backend.webgpu.lowering import Bank, Context, View
from zllm.backend.webgpu.wgsl_format import FORMATS
from zllm.kernel.wgsl.source import compose
from zllm.linear import LinearSpec
from zllm.norm import RmsNormSpec

ACCESS: tuple[Access, ...] = ("read", "read", "read", "read", "read", "write")

# Tokens up to which one workgroup for four matrix rows beats tiles; the kernel holds no more.
ROWS_TOKENS = 8
ROWS_THREADS = 64
NO_NORM = RmsNormSpec(0.0)
LANES_TOKENS = 4  # of one thread
TILE_ROWS, TILE_TOKENS = 64, 32


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
    return [dispatch(product, bank, context.info) for bank in context.banks(w)]


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
        return [dispatch(product, banks[0], context.info)]
    width = out.columns
    both = context.scratch(4 * out.rows * 2 * width)
    gate = View(both, 0, 2 * width, out.rows, width)
    up = View(both, width, 2 * width, out.rows, width)
    plain = replace(product, out=View(both, 0, 2 * width, out.rows, 2 * width), gated=None)
    parts = [dispatch(plain, bank, context.info) for bank in banks]
    return [*parts, gated_dispatch(gate, up, out, spec.product)]


def _vector(weight: Any, context: Context) -> Buffer | None:
    """Vectors are resident as one bank of f32."""
    if weight is None:
        return None
    (bank,) = context.banks(weight)
    assert bank.format == "f32", weight
    return bank.buffer


def dispatch(product: Product, bank: Bank, info: DeviceInfo) -> Dispatch:
    x, out = product.x, product.out
    rows = bank.rows // 2 if product.gated else bank.rows
    residual = product.residual
    values: dict[str, float] = {
        "COLUMNS": bank.columns,
        "X_OFFSET": x.offset,
        "X_STRIDE": x.stride,
        "BLOCKS": FORMATS[bank.format].blocks(bank.columns),
        "ROWS": rows,
        "TOKENS": x.rows,
        "FIRST_ROW": bank.first_row,
        "OUT_OFFSET": out.offset,
        "OUT_STRIDE": out.stride,
        "HAS_BIAS": product.bias is not None,
        "HAS_RESIDUAL": residual is not None,
        "NORM": product.norm is not None,
        "EPS": product.norm_spec.eps,
        "NORM_OFFSET": product.norm_spec.offset,
        "FACTOR": product.factor,
        "GATED": product.gated is not None,
    }
    if product.gated:
        values |= activation(product.gated)
    if residual is not None:
        values |= {"RESIDUAL_OFFSET": residual.offset, "RESIDUAL_STRIDE": residual.stride}
    shape, sources, more, grid = _shape(rows, x.rows, product.gated is not None, info)
    decode = FORMATS[bank.format].sources
    wgsl = compose(_input(product, bank), *decode, "silu", "activation", "product", *sources)
    kernel = Kernel(f"{shape}_{bank.format}", wgsl, ACCESS, constants(values | more))
    # WGSL has no optional binding: where nothing is read, x stands in.
    buffers = (
        bank.buffer,
        x.buffer,
        product.norm or x.buffer,
        product.bias or x.buffer,
        residual.buffer if residual is not None else x.buffer,
        out.buffer,
    )
    return Dispatch(kernel, buffers, grid)


def _input(product: Product, bank: Bank) -> str:
    x = product.x
    whole = bank.columns % FORMATS[bank.format].elements == 0 and not (x.offset | x.stride) % 4
    return "input_vec4" if whole else "input_scalar"


def _shape(
    rows: int, tokens: int, gated: bool, info: DeviceInfo
) -> tuple[str, tuple[str, ...], dict[str, float], tuple[int, int, int]]:
    """(name, sources, own constants, grid) of the kernel that suits the device and the sizes."""
    if info.software:
        threads = lanes_threads(rows)
        grid = (ceil_div(rows, (4 if gated else 8) * threads), ceil_div(tokens, LANES_TOKENS), 1)
        return "product_lanes", ("product_lanes",), {"THREADS": threads}, grid
    if tokens <= ROWS_TOKENS:
        groups = ceil_div(rows, 2 if gated else 4)
        more: dict[str, float] = {"THREADS": ROWS_THREADS, "GROUPS": groups}
        return "product_rows", (reduction(info), "product_rows"), more, strided_grid(groups, info)
    tiles = ceil_div(rows, TILE_ROWS // 2 if gated else TILE_ROWS)
    grid = (min(tiles, info.max_grid), ceil_div(tokens, TILE_TOKENS), 1)
    return "product_tile", ("product_tile",), {"TILES": tiles}, grid


def lanes_threads(rows: int) -> int:
    """Enough workgroups for several cores, yet whole SIMD words. Measured on lavapipe."""
    return 8 if rows < 4096 else 16
