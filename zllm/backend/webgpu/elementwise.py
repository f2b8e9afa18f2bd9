"""Launchers that move or scale rows: embedding, norms, gates, sums, caps, copies."""

from __future__ import annotations

from typing import Any

from zllm.activation import GatedSpec
from zllm.backend.contract import Op
from zllm.backend.webgpu.device import Access, Buffer, DeviceInfo, Dispatch, Kernel
from zllm.backend.webgpu.kernels import ceil_div, constants, reduction, strided_grid
from zllm.backend.webgpu.lowering import Context, View
from zllm.backend.webgpu.wgsl_format import FORMATS
from zllm.kernel.wgsl.source import compose
from zllm.kernel.wgsl.unroll import unroll
from zllm.norm import LayerNormSpec, RmsNormSpec

ACTIVATIONS = ("silu", "gelu_tanh", "swiglu_oai")  # numbered as in activation.wgsl
GATED_GRID = 1024  # workgroups of 64; each strides


def places(**views: View) -> dict[str, float]:
    """X_OFFSET and X_STRIDE of each view, named by its keyword."""
    found: dict[str, float] = {}
    for name, view in views.items():
        found[f"{name.upper()}_OFFSET"] = view.offset
        found[f"{name.upper()}_STRIDE"] = view.stride
    return found


def lower_embed(op: Op, context: Context) -> list[Dispatch]:
    """One dispatch a bank; each writes the rows whose tokens it holds."""
    table: Any = op.ins[0]
    out, at = context.view(op.outs[0]), context.layout.offset
    dispatches = []
    for bank in context.banks(table):
        spec = FORMATS[bank.format]
        blocks = spec.blocks(bank.columns)
        values = {
            "COLUMNS": bank.columns,
            "BLOCKS": blocks,
            "FIRST_ROW": bank.first_row,
            "ROWS": bank.rows,
            "TOKENS": out.rows,
            "TOKEN": at["token"],
            "SEQ": at["seq"],
            "LANE": at["lane"],
            "FACTOR": 1.0 if op.spec is None else op.spec.scale,
        } | places(out=out)
        wgsl = compose("input_none", *spec.sources, "embed")
        kernel = Kernel(
            f"embed_{bank.format}", wgsl, ("read", "read", "read", "write"), constants(values)
        )
        buffers = (bank.buffer, context.step, context.carry_token(), out.buffer)
        grid = strided_grid(ceil_div(out.rows * blocks * spec.elements // 8, 32), context.info)
        dispatches.append(Dispatch(kernel, buffers, grid))
    return dispatches


def lower_rms_norm(op: Op, context: Context) -> list[Dispatch]:
    return [_norm(op, context, {"OFFSET": op.spec.offset})]


def lower_layer_norm(op: Op, context: Context) -> list[Dispatch]:
    return [_norm(op, context, {})]


def _norm(op: Op, context: Context, more: dict[str, float]) -> Dispatch:
    spec: RmsNormSpec | LayerNormSpec = op.spec
    banks = [context.banks(op.weight(i))[0] for i in range(1, len(op.ins))]
    values = more | {"COLUMNS": banks[0].columns, "EPS": spec.eps}
    view, out = context.view(op.value(0)), context.view(op.outs[0])
    return _norm_dispatch(op.name, view, [b.buffer for b in banks], out, values, context.info)


def rms_norm_dispatch(
    x: View, weight: Buffer, out: View, spec: RmsNormSpec, info: DeviceInfo
) -> Dispatch:
    """Of whole rows."""
    values = {"COLUMNS": x.columns, "EPS": spec.eps, "OFFSET": spec.offset}
    return _norm_dispatch("rms_norm", x, [weight], out, values, info)


def _norm_dispatch(
    name: str,
    x: View,
    weights: list[Buffer],
    out: View,
    values: dict[str, float],
    info: DeviceInfo,
) -> Dispatch:
    """Of each run of COLUMNS."""
    runs = x.columns // int(values["COLUMNS"])
    values = values | {
        "ROWS": x.rows,
        "RUNS": runs,
        "THREADS": _norm_threads(int(values["COLUMNS"]), info),
    }
    read: Access = "read"
    access: tuple[Access, ...] = (read, *[read] * len(weights), "write")
    wgsl = unroll(compose(reduction(info), name), {})
    kernel = Kernel(name, wgsl, access, constants(values | places(x=x, out=out)))
    return Dispatch(kernel, (x.buffer, *weights, out.buffer), strided_grid(x.rows * runs, info))


def _norm_threads(columns: int, info: DeviceInfo) -> int:
    """A power of two."""
    if info.software:
        return max(info.subgroup_size, 4)
    return min(256, max(32, 1 << (columns // 8 - 1).bit_length()))


def lower_gated(op: Op, context: Context) -> list[Dispatch]:
    gate, up = context.view(op.value(0)), context.view(op.value(1))
    return [gated_dispatch(gate, up, context.view(op.outs[0]), op.spec)]


def activation(spec: GatedSpec) -> dict[str, float]:
    """The constants of activation.wgsl."""
    return {
        "ACTIVATION": ACTIVATIONS.index(spec.activation),
        "LIMIT": spec.limit,
        "ALPHA": spec.alpha,
    }


def gated_dispatch(gate: View, up: View, out: View, spec: GatedSpec) -> Dispatch:
    values: dict[str, float] = {"COLUMNS": out.columns, "ROWS": out.rows} | activation(spec)
    values |= places(gate=gate, up=up, out=out)
    wgsl = compose("silu", "activation", "gated")
    kernel = Kernel("gated", wgsl, ("read", "read", "write"), constants(values))
    grid = (min(GATED_GRID, ceil_div(out.rows * out.columns, 64)), 1, 1)
    return Dispatch(kernel, (gate.buffer, up.buffer, out.buffer), grid)


def lower_add(op: Op, context: Context) -> list[Dispatch]:
    x, y = context.view(op.value(0)), context.view(op.value(1))
    out = context.view(op.outs[0])
    values = {"COLUMNS": out.columns, "ROWS": out.rows} | places(x=x, y=y, out=out)
    kernel = Kernel("add", compose("add"), ("read", "read", "write"), constants(values))
    grid = strided_grid(ceil_div(out.rows * out.columns, 64), context.info)
    return [Dispatch(kernel, (x.buffer, y.buffer, out.buffer), grid)]


def lower_soft_cap(op: Op, context: Context) -> list[Dispatch]:
    x, out = context.view(op.value(0)), context.view(op.outs[0])
    values = {"CAP": op.spec.cap, "COLUMNS": out.columns, "ROWS": out.rows} | places(x=x, out=out)
    kernel = Kernel("soft_cap", compose("soft_cap"), ("read", "write"), constants(values))
    grid = strided_grid(ceil_div(out.rows * out.columns, 64), context.info)
    return [Dispatch(kernel, (x.buffer, out.buffer), grid)]


def lower_last_rows(op: Op, context: Context) -> list[Dispatch]:
    x, out = context.view(op.value(0)), context.view(op.outs[0])
    return [_copy(x, out, context, index=context.layout.offset["last_row"])]


def lower_logits(op: Op, context: Context) -> list[Dispatch]:
    """All rows to the result buffer, [R, V] without gaps."""
    x = context.view(op.value(0))
    return [_copy(x, View(context.result, 0, x.columns, x.rows, x.columns), context, index=None)]


def _copy(x: View, out: View, context: Context, *, index: int | None) -> Dispatch:
    """Row r of out is row r of x, or the row that step word `index` + r names."""
    values: dict[str, float] = {"COLUMNS": out.columns, "ROWS": out.rows} | places(x=x, out=out)
    values |= {"INDEXED": index is not None, "INDEX": index or 0}
    kernel = Kernel("copy_rows", compose("copy_rows"), ("read", "read", "write"), constants(values))
    grid = strided_grid(ceil_div(out.rows * out.columns, 64), context.info)
    return Dispatch(kernel, (x.buffer, context.step, out.buffer), grid)
