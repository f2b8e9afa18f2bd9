"""Launchers of hyper-connections: several residual streams, side by side in a row."""

from __future__ import annotations

from collections.abc import Mapping

from zllm.backend.contract import Op
from zllm.backend.webgpu.device import Access, Buffer, DeviceInfo, Dispatch, Kernel
from zllm.backend.webgpu.elementwise import places
from zllm.backend.webgpu.kernels import ceil_div, constants, reduction, strided_grid
from zllm.backend.webgpu.lowering import Bank, Context, View
from zllm.hyper_connection import HyperSpec
from zllm.kernel.wgsl.source import compose
from zllm.kernel.wgsl.unroll import unroll

MOST_STREAMS = 4  # of the vectors and matrices of hc_gates.wgsl
MOST_TILE = 8  # rows of hc_product.wgsl
# A split has columns for two steps of its threads; FULL_GROUPS workgroups occupy a large GPU.
THREADS, SPLIT_COLUMNS, FULL_GROUPS = 128, 256, 256
AHEAD = 4  # loads of one row that are on their way at a time
# (threads, columns of each) of a workgroup of hc_gates.wgsl, and into how many sums it adds splits.
GATES, SOFTWARE_GATES = (128, 1), (32, 8)
DEALERS = 16


def missing_hyper(op: Op, info: DeviceInfo) -> str | None:
    spec: HyperSpec = op.spec
    if spec.streams > MOST_STREAMS:
        return f"{spec.streams} residual streams are more than {MOST_STREAMS}"
    return None


def lower_hc_start(op: Op, context: Context) -> list[Dispatch]:
    x = context.view(op.value(0))
    return [_spread(op, context, x.columns, context.view(op.outs[0]).columns)]


def lower_hc_mean(op: Op, context: Context) -> list[Dispatch]:
    width = context.view(op.outs[0]).columns
    return [_spread(op, context, width, width)]


def _spread(op: Op, context: Context, width: int, columns: int) -> Dispatch:
    """One thread a column of the result."""
    x, out = context.view(op.value(0)), context.view(op.outs[0])
    values: dict[str, float] = {"ROWS": x.rows, "STREAMS": op.spec.streams, "WIDTH": width}
    values |= places(x=x, out=out)
    kernel = Kernel(op.name, compose(op.name), ("read", "write"), constants(values))
    grid = strided_grid(ceil_div(x.rows * columns, 64), context.info)
    return Dispatch(kernel, (x.buffer, out.buffer), grid)


def lower_hc_join(op: Op, context: Context) -> list[Dispatch]:
    f, x, post, comb = (context.view(op.value(i)) for i in range(4))
    out = context.view(op.outs[0])
    values: dict[str, float] = {"ROWS": x.rows, "WIDTH": f.columns}
    values |= places(f=f, x=x, post=post, comb=comb, out=out)
    access: tuple[Access, ...] = ("read", "read", "read", "read", "write")
    streams = {"STREAMS": post.columns}
    wgsl = fixed(streams) + unroll(compose("hc_join"), streams)
    kernel = Kernel("hc_join", wgsl, access, constants(values))
    grid = (ceil_div(f.columns, 64), min(x.rows, context.info.max_grid), 1)
    buffers = (f.buffer, x.buffer, post.buffer, comb.buffer, out.buffer)
    return [Dispatch(kernel, buffers, grid)]


def lower_hc_split(op: Op, context: Context) -> list[Dispatch]:
    h, post, comb = (context.view(out) for out in op.outs)
    assert h.buffer is post.buffer is comb.buffer, "results of one op lie side by side"
    return _weighed(op, context, h, (post, comb))


def lower_hc_head(op: Op, context: Context) -> list[Dispatch]:
    return _weighed(op, context, context.view(op.outs[0]), None)


def _weighed(
    op: Op, context: Context, out: View, mixed: tuple[View, View] | None
) -> list[Dispatch]:
    """One dispatch to the products with `fn`, one to the gates and the streams they weigh."""
    x, fn = context.view(op.value(0)), context.banks(op.weight(1))[0]
    quads, splits = ceil_div(fn.rows, 4), _splits(x, fn, context.info)
    parts = context.scratch(16 * x.rows * splits * (quads + 1))
    return [
        _product(x, fn, parts, splits, context.info),
        _gates(op, context, parts, splits, out, mixed),
    ]


def _splits(x: View, fn: Bank, info: DeviceInfo) -> int:
    """Into how many workgroups the columns of a product are dealt."""
    if info.software:
        return 1
    others = (ceil_div(fn.rows, 4) + 1) * ceil_div(x.rows, _tile(x.rows))
    return max(1, min(ceil_div(fn.columns, SPLIT_COLUMNS), ceil_div(FULL_GROUPS, others)))


def _tile(rows: int) -> int:
    """Rows of a workgroup, a power of two: they are written into the kernel's text."""
    return min(1 << (rows - 1).bit_length(), MOST_TILE)


def _product(x: View, fn: Bank, parts: Buffer, splits: int, info: DeviceInfo) -> Dispatch:
    quads, tile = ceil_div(fn.rows, 4), _tile(x.rows)
    values: dict[str, float] = {
        "ROWS": x.rows,
        "OUTPUTS": fn.rows,
        "QUADS": quads,
        "COLUMNS": fn.columns,
        "W_STRIDE": fn.row_words,
        "SPLITS": splits,
        "SPLIT_COLUMNS": ceil_div(fn.columns, splits),
        "THREADS": max(info.subgroup_size, 4) if info.software else THREADS,
    } | places(x=x)
    sizes = {"TILE": tile, "AHEAD": 1 if info.software else AHEAD if tile == 1 else AHEAD // 2}
    wgsl = fixed(sizes) + unroll(compose(reduction(info), "hc_product"), sizes)
    kernel = Kernel("hc_product", wgsl, ("read", "read", "write"), constants(values))
    grid = (splits, quads + 1, min(ceil_div(x.rows, tile), info.max_grid))
    return Dispatch(kernel, (x.buffer, fn.buffer, parts), grid)


def _gates(
    op: Op, context: Context, parts: Buffer, splits: int, out: View, mixed: tuple[View, View] | None
) -> Dispatch:
    spec: HyperSpec = op.spec
    info = context.info
    threads, each = SOFTWARE_GATES if info.software else GATES
    x = context.view(op.value(0))
    base, scale = (context.banks(op.weight(i))[0].buffer for i in (2, 3))
    post, comb = mixed or (out, out)
    outputs = op.weight(1).shape[0]
    values: dict[str, float] = {
        "MIXES": mixed is not None,
        "ROWS": x.rows,
        "WIDTH": out.columns,
        "OUTPUTS": outputs,
        "QUADS": ceil_div(outputs, 4),
        "SPLITS": splits,
        "ITERATIONS": spec.iterations,
        "EPS": spec.eps,
        "NORM_EPS": spec.norm_eps,
    }
    values |= places(x=x, out=out, post=post, comb=comb)
    access: tuple[Access, ...] = ("read", "read", "read", "read", "write")
    sizes = {"THREADS": threads, "STREAMS": spec.streams, "EACH": each, "DEALERS": DEALERS}
    unrolled = {"DEALT": ceil_div(splits, DEALERS), "HALF": DEALERS // 2}
    wgsl = fixed(sizes) + unroll(compose("silu", "hc_gates"), sizes | unrolled)
    kernel = Kernel("hc_gates", wgsl, access, constants(values))
    blocks = ceil_div(out.columns, threads * each) + (mixed is not None)
    grid = (blocks, min(x.rows, info.max_grid), 1)
    return Dispatch(kernel, (parts, x.buffer, base, scale, out.buffer), grid)


def fixed(sizes: Mapping[str, int]) -> str:
    """Constants that are in a kernel's text."""
    return "".join(f"const {name}: u32 = {value}u;\n" for name, value in sizes.items())
