"""Grouped-query attention and rotation as closures over arrays and caches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from zllm import rope as rotary
from zllm.attention import gqa
from zllm.backend.contract import Op
from zllm.backend.oracle import operands
from zllm.backend.oracle.operands import Run
from zllm.backend.oracle.step import Step

if TYPE_CHECKING:
    from zllm.backend.oracle.backend import OracleBackend
    from zllm.backend.oracle.plan import OraclePlan

# Query rows per attention block: scores of a block stay near the cache, and causal blocks skip
# the keys that none of their rows may see.
ATTEND_ROWS = 64


def rope_append(op: Op, plan: OraclePlan, backend: OracleBackend) -> Run:
    spec: gqa.GqaSpec = op.spec
    q, k, v = (operands.array(op, i, plan) for i in range(3))
    group = op.cache(3).group
    keys, values = operands.storage(op, 3, backend)
    table, name = operands.vector(op, 4, backend), getattr(op.ins[4], "name", "")
    out = operands.heads(plan.array(op.outs[0]), spec.heads)

    def run(step: Step) -> None:
        cos_sin = step.cos_sin(name, table)  # [R, r]
        pairs = spec.interleaved
        rotary.rotate(operands.heads(q, spec.heads), cos_sin, interleaved=pairs, out=out)
        turned = rotary.rotate(operands.heads(k, spec.kv_heads), cos_sin, interleaved=pairs)
        slots = step.row_slots[group]  # a slice where they are a run
        keys[:, slots] = turned.transpose(1, 0, 2)
        values[:, slots] = operands.heads(v, spec.kv_heads).transpose(1, 0, 2)

    return run


def rope(op: Op, plan: OraclePlan, backend: OracleBackend) -> Run:
    spec: rotary.RotateSpec = op.spec
    x = operands.heads(operands.array(op, 0, plan), spec.heads)
    out = operands.heads(plan.array(op.outs[0]), spec.heads)
    table, name = operands.vector(op, 1, backend), getattr(op.ins[1], "name", "")
    part = slice(spec.first, spec.first + spec.rotated)

    def run(step: Step) -> None:
        cos_sin = step.cos_sin(name, table)
        if spec.inverse:
            half = spec.rotated // 2
            cos_sin = np.concatenate([cos_sin[:, :half], -cos_sin[:, half:]], axis=1)
        np.copyto(out, x)
        rotary.rotate(x[..., part], cos_sin, interleaved=spec.interleaved, out=out[..., part])

    return run


def attend(op: Op, plan: OraclePlan, backend: OracleBackend) -> Run:
    spec: gqa.GqaSpec = op.spec
    group = op.cache(1).group
    keys, values = operands.storage(op, 1, backend)
    sinks = operands.vector(op, 2, backend) if len(op.ins) > 2 else None
    q = operands.heads(operands.array(op, 0, plan), spec.heads)
    out = operands.heads(plan.array(op.outs[0]), spec.heads)

    def run(step: Step) -> None:
        for span in step.spans:
            slots = span.slots[group]
            k, v = keys[:, slots], values[:, slots]  # [G, S, K]; views where the slots are a run
            for first in range(span.rows.start, span.rows.stop, ATTEND_ROWS):
                rows = slice(first, min(first + ATTEND_ROWS, span.rows.stop))
                position = span.first_position + first - span.rows.start
                seen = slice(_oldest(position, spec), position + rows.stop - first)
                visible = _visible(rows.stop - first, seen, position, spec)
                gqa.attend(
                    q[rows], k[:, seen], v[:, seen], visible, spec, sinks=sinks, out=out[rows]
                )

    return run


def _oldest(position: int, spec: gqa.GqaSpec) -> int:
    """The first position that a row at `position` sees."""
    return max(0, position - spec.window + 1) if spec.window else 0


def _visible(count: int, seen: slice, position: int, spec: gqa.GqaSpec) -> NDArray[np.bool_] | None:
    """Which of a block's last keys each of its rows sees; None if there is nothing to hide."""
    if count == 1:
        return None
    if not spec.window:
        return np.tri(count, dtype=np.bool_)  # the block's own positions
    distance = position + np.arange(count)[:, None] - np.arange(seen.start, seen.stop)
    return np.asarray((distance >= 0) & (distance < spec.window))


LOWER = {"rope_append": rope_append, "rope": rope, "attend": attend}
