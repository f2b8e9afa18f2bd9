"""Launchers of rotary position embedding: rope_append, and rope by itself."""

from __future__ import annotations

from typing import Any

from zllm.attention.gqa import GqaSpec
from zllm.backend.contract import Op, Weight
from zllm.backend.webgpu.device import DeviceInfo, Dispatch, Kernel
from zllm.backend.webgpu.elementwise import places
from zllm.backend.webgpu.kernels import ceil_div, constants, strided_grid
from zllm.backend.webgpu.lowering import Context
from zllm.kernel.wgsl.source import compose
from zllm.rope import RotateSpec


def missing_rope_append(op: Op, info: DeviceInfo) -> str | None:
    spec: GqaSpec = op.spec
    if spec.head_size % 2 or spec.rotated % 2 or spec.rotated > spec.head_size:
        return (
            f"head size {spec.head_size} and rotated {spec.rotated} must be even, "
            "and rotated at most the head size"
        )
    return None


def missing_rope(op: Op, info: DeviceInfo) -> str | None:
    spec: RotateSpec = op.spec
    if spec.rotated % 2 or spec.first + spec.rotated > spec.head_size:
        return (
            f"rotated {spec.rotated} must be even and, from {spec.first} on, within the head of "
            f"{spec.head_size}"
        )
    return None


def lower_rope_append(op: Op, context: Context) -> list[Dispatch]:
    q, k, v = (context.view(op.value(i)) for i in range(3))
    cache, table = op.cache(3), op.weight(4)
    (angles,) = context.banks(table)
    spec: GqaSpec = op.spec
    out, at = context.view(op.outs[0]), context.layout.offset
    store = context.store(cache)
    keys, stored = store.buffers
    values: dict[str, float] = {
        "HEADS": spec.heads,
        "KV_HEADS": spec.kv_heads,
        "HEAD_SIZE": spec.head_size,
        "ROW_SLOT": at[f"{cache.group}.row_slot"],
        "VALID_ROWS": at["valid_rows"],
    }
    values |= turning(spec, table, context) | places(q=q, k=k, v=v, out=out)
    kernel = Kernel(
        "rope_append",
        compose(f"keep_{store.dtype}", "turn", "rope_append"),
        ("read", "read", "read", "read", "read", "write", "write", "write"),
        constants(values),
    )
    buffers = (
        q.buffer, k.buffer, v.buffer, angles.buffer, context.step, keys, stored, out.buffer
    )  # fmt: skip
    pairs = out.rows * (spec.heads + 2 * spec.kv_heads) * spec.head_size // 2
    return [Dispatch(kernel, buffers, strided_grid(ceil_div(pairs, 64), context.info))]


def lower_rope(op: Op, context: Context) -> list[Dispatch]:
    x, out = context.view(op.value(0)), context.view(op.outs[0])
    (angles,) = context.banks(op.weight(1))
    spec: RotateSpec = op.spec
    values: dict[str, float] = {
        "ROWS": out.rows,
        "HEADS": spec.heads,
        "HEAD_SIZE": spec.head_size,
        "FIRST": spec.first,
        "INVERSE": spec.inverse,
    }
    values |= turning(spec, op.ins[1], context) | places(x=x, out=out)
    access = ("read", "read", "read", "write")
    kernel = Kernel("rope", compose("turn", "rope"), access, constants(values))  # type: ignore[arg-type]
    units = out.rows * spec.heads * (spec.head_size - spec.rotated // 2)
    grid = strided_grid(ceil_div(units, 64), context.info)
    return [Dispatch(kernel, (x.buffer, angles.buffer, context.step, out.buffer), grid)]


def turning(spec: GqaSpec | RotateSpec, table: Any, context: Context) -> dict[str, float]:
    """The constants of turn.wgsl. A table of two parts holds as many rows in each."""
    assert isinstance(table, Weight), table
    at = context.layout.offset
    return {
        "ROTATED": spec.rotated,
        "INTERLEAVED": spec.interleaved,
        "LONG_ROW": table.parts[0] if len(table.parts) > 1 else 0,
        "POSITION": at["position"],
        "SEQ": at["seq"],
        "FLAGS": at["flags"],
    }
