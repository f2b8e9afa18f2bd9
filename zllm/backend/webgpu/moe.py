"""Launchers of mixture of experts: routing."""

from __future__ import annotations

from zllm.backend.contract import Op
from zllm.backend.webgpu.device import Access, Buffer, DeviceInfo, Dispatch, Kernel
from zllm.backend.webgpu.elementwise import places
from zllm.backend.webgpu.kernels import constants, reduction, strided_grid
from zllm.backend.webgpu.lowering import Context
from zllm.kernel.wgsl.source import compose
from zllm.kernel.wgsl.unroll import unroll
from zllm.moe.routing import RouteSpec

SCORES = ("softmax", "sigmoid", "sqrt_softplus", "softmax_of_chosen")  # as route.wgsl counts them
MOST_EXPERTS, MOST_GROUPS = 1024, 256  # of the arrays in workgroup memory
ROUTE_THREADS = 256
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
    aside = context.banks(op.weight(1))[0] if biased else context.view(op.value(0))
    return [_route(op, context, "choose_largest", values, aside.buffer, ())]


def lower_route_by_token(op: Op, context: Context) -> list[Dispatch]:
    at = context.layout.offset
    values: dict[str, float] = {
        "TOKEN": at["token"],
        "SEQ": at["seq"],
        "LANE": at["lane"],
        "TOKENS": op.weight(1).shape[0],
    }
    (table,) = context.banks(op.weight(1))
    assert table.format == "f32" and table.row_words == table.columns, table
    more = (context.step, context.carry_token())
    return [_route(op, context, "choose_by_token", values, table.buffer, more)]


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
        "THREADS": max(info.subgroup_size, 4) if info.software else ROUTE_THREADS,
    }
    values |= places(logits=logits, ids=ids, weights=weights)
    access: tuple[Access, ...] = (*READ * 2, "write", *READ * len(more))
    wgsl = unroll(compose(reduction(info), "route", choose), {})
    kernel = Kernel(op.name, wgsl, access, constants(values))
    buffers = (logits.buffer, aside, ids.buffer, *more)
    return Dispatch(kernel, buffers, strided_grid(logits.rows, info))
