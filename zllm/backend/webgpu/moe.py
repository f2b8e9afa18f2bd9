"""Launchers of mixture of experts: routing, and the products of the chosen experts."""

from __future__ import annotations

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
from zllm.moe.experts import ExpertsSpec
from zllm.moe.routing import RouteSpec

SCORES = ("softmax", "sigmoid", "sqrt_softplus", "softmax_of_chosen")  # as route.wgsl counts them
MOST_EXPERTS, MOST_GROUPS = 1024, 256  # of the arrays in workgroup memory
READ: tuple[Access, ...] = ("read",)


def missing_route(op: Op, info: DeviceInfo) -> str | None:
    spec: RouteSpec = op.spec
    experts = op.value(0).shape[1]
    if spec.score not in SCORES:
        return f"no WGSL for the score {spec.score!r}"
    if experts > MOST_EXPERTS or spec.groups > MOST_GROUPS:
        return f"{experts} experts in {spec.groups} groups; {MOST_EXPERTS} in {MOST_GROUPS} fit"
    return None


def lower_route(op: Op, context: Context) -> list[Dispatch]:
    spec: RouteSpec = op.spec
    biased = op.ins[1] is not None
    values: dict[str, float] = {
        "GROUPS": spec.groups,
        "KEPT_GROUPS": spec.kept_groups,
        "HAS_BIAS": biased,
    }
    # WGSL has no optional binding: without a bias the logits stand in.
    aside = _one_bank(op.weight(1), context) if biased else context.view(op.value(0))
    return [_route(op, context, "choose_largest", values, aside.buffer, ())]


def lower_route_by_token(op: Op, context: Context) -> list[Dispatch]:
    at = context.layout.offset
    values: dict[str, float] = {"TOKEN": at["token"], "SEQ": at["seq"], "LANE": at["lane"]}
    table = _one_bank(op.ins[1], context).buffer
    more = (context.step, context.carry_token())
    return [_route(op, context, "choose_by_token", values, table, more)]


def _route(
    op: Op,
    context: Context,
    choose: str,
    values: dict[str, float],
    aside: Buffer,
    more: tuple[Buffer, ...],
) -> Dispatch:
    spec: RouteSpec = op.spec
    info = context.info
    logits = context.view(op.value(0))
    ids, weights = (context.view(out) for out in op.outs)
    assert ids.buffer is weights.buffer, "results of one op lie side by side"
    values = values | {
        "ROWS": logits.rows,
        "EXPERTS": logits.columns,
        "CHOSEN": spec.top_k,
        "SCORE": SCORES.index(spec.score),
        "NORMALISE": spec.normalise,
        "SCALE": spec.scale,
        "THREADS": max(info.subgroup_size, 4) if info.software else 128,
    }
    values |= places(logits=logits, ids=ids, weights=weights)
    access: tuple[Access, ...] = (*READ * 2, "write", *READ * len(more))
    wgsl = compose(reduction(info), "route", choose)
    kernel = Kernel(op.name, wgsl, access, constants(values))
    buffers = (logits.buffer, aside, ids.buffer, *more)
    return Dispatch(kernel, buffers, strided_grid(logits.rows, info))


def lower_experts(op: Op, context: Context) -> list[Dispatch]:
    """One dispatch to the gated inner values of every (row, expert), one to their weighted sum."""
    spec: ExpertsSpec = op.spec
    x, out = context.view(op.value(0)), context.view(op.outs[0])
    chosen = context.view(op.value(1)).columns
    pairs = x.rows * chosen
    inner = View(context.scratch(4 * pairs * spec.width), 0, spec.width, pairs, spec.width)
    return [
        _experts(op, context, x, inner, gated=True),
        _experts(op, context, inner, out, gated=False),
    ]


def _experts(op: Op, context: Context, x: View, out: View, *, gated: bool) -> Dispatch:
    spec: ExpertsSpec = op.spec
    info = context.info
    ids, weights = context.view(op.value(1)), context.view(op.value(2))
    bank = _one_bank(op.ins[3 if gated else 4], context)
    bias: Any = op.ins[5 if gated else 6]
    values: dict[str, float] = {
        "COLUMNS": bank.columns,
        "X_OFFSET": x.offset,
        "X_STRIDE": x.stride,
        "BLOCKS": FORMATS[bank.format].blocks(bank.columns),
        "ROWS": out.columns,
        "CHOSEN": ids.columns,
        "GATED": gated,
        "INTERLEAVED": spec.interleaved,
        "HAS_BIAS": bias is not None,
        "VALID_ROWS": context.layout.offset["valid_rows"],
    }
    values |= places(ids=ids, weights=weights, out=out) | activation(spec.gated)
    shape, sources, more, grid = product_shape(out, gated, info)
    decode = FORMATS[bank.format].sources
    wgsl = compose(input_source(x, bank), *decode, "silu", "activation", "experts", *sources)
    kernel = Kernel(f"{shape}_{bank.format}", wgsl, (*READ * 7, "write"), constants(values | more))
    # WGSL has no optional binding: where nothing is read, x stands in.
    buffers = (
        bank.buffer,
        x.buffer,
        x.buffer,
        _one_bank(bias, context).buffer if bias is not None else x.buffer,
        ids.buffer,
        weights.buffer,
        context.step,
        out.buffer,
    )
    return Dispatch(kernel, buffers, grid)


def product_shape(
    out: View, gated: bool, info: DeviceInfo
) -> tuple[str, tuple[str, ...], dict[str, float], tuple[int, int, int]]:
    """(name, sources, own constants, grid) of the kernel that suits the device."""
    units = min(out.rows, info.max_grid)
    if info.software:
        threads = lanes_threads(out.columns)
        groups = ceil_div(out.columns, (4 if gated else 8) * threads)
        return "experts_lanes", ("experts_lanes",), {"THREADS": threads}, (groups, units, 1)
    groups = ceil_div(out.columns, 2 if gated else 4)
    more: dict[str, float] = {"THREADS": ROWS_THREADS, "GROUPS": groups}
    grid = (min(groups, info.max_grid), units, 1)
    return "experts_rows", (reduction(info), "experts_rows"), more, grid


def input_source(x: View, bank: Bank) -> str:
    whole = bank.columns % FORMATS[bank.format].elements == 0 and not (x.offset | x.stride) % 4
    return "input_vec4" if whole else "input_scalar"


def _one_bank(weight: Any, context: Context) -> Bank:
    banks = context.banks(weight)
    if len(banks) > 1:
        raise BackendError(
            f"{weight.name}: experts lie in {len(banks)} buffers "
            f"({', '.join(sorted({bank.format for bank in banks}))}; {context.info.name} binds at "
            f"most {context.info.max_binding_bytes / 2**20:.0f} MiB), and the WebGPU kernels read "
            "one; use --backend oracle"
        )
    return banks[0]
