"""KDA as closures: a sequence of a round goes on from the plane it reads to the one it writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from zllm.attention import kda
from zllm.backend.contract import Op
from zllm.backend.oracle import operands
from zllm.backend.oracle.operands import F32, Run
from zllm.backend.oracle.step import Span, Step

if TYPE_CHECKING:
    from zllm.backend.oracle.backend import OracleBackend
    from zllm.backend.oracle.plan import OraclePlan


def conv(op: Op, plan: OraclePlan, backend: OracleBackend) -> Run:
    x, out = operands.array(op, 0, plan), operands.joined(op, plan)
    w = operands.vector(op, 1, backend)
    (planes,) = operands.storage(op, 2, backend)

    def run(step: Step) -> None:
        for span in step.spans:
            out[span.rows], after = kda.conv(x[span.rows], w, _before(planes, span))
            planes[span.written_plane] = after

    return run


def decay(op: Op, plan: OraclePlan, backend: OracleBackend) -> Run:
    a, out = operands.array(op, 0, plan), plan.array(op.outs[0])
    a_log, dt_bias = operands.vector(op, 1, backend), operands.vector(op, 2, backend)
    return lambda step: np.copyto(out, kda.decay(a, a_log, dt_bias, op.spec))


def delta(op: Op, plan: OraclePlan, backend: OracleBackend) -> Run:
    spec: kda.DeltaSpec = op.spec
    q, k, v, g = (operands.heads(operands.array(op, i, plan), spec.heads) for i in range(4))
    beta = operands.array(op, 4, plan)
    (planes,) = operands.storage(op, 5, backend)
    out = operands.heads(plan.array(op.outs[0]), spec.heads)

    def run(step: Step) -> None:
        for span in step.spans:
            qkv = q[span.rows], k[span.rows], v[span.rows]
            before = _before(planes, span)
            out[span.rows], after = kda.delta(qkv, g[span.rows], beta[span.rows], before)
            planes[span.written_plane] = after

    return run


def gated_norm(op: Op, plan: OraclePlan, backend: OracleBackend) -> Run:
    w = operands.vector(op, 2, backend)
    x, gate, out = (
        array.reshape(array.shape[0], -1, w.size)
        for array in (
            operands.array(op, 0, plan),
            operands.array(op, 1, plan),
            plan.array(op.outs[0]),
        )
    )
    return lambda step: np.copyto(out, kda.gated_norm(x, gate, w, op.spec.eps))


def _before(planes: F32, span: Span) -> F32:
    """The state that a sequence begins from: at position 0 zeros, whatever the plane holds."""
    state = planes[span.read_plane]
    return state if span.first_position else np.zeros_like(state)


LOWER = {"conv": conv, "decay": decay, "delta": delta, "gated_norm": gated_norm}
