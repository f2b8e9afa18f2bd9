"""Hyper-connections as closures over arrays [R, N, D] of a round's residual streams."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from zllm import hyper_connection
from zllm.backend.contract import Op
from zllm.backend.oracle import operands
from zllm.backend.oracle.operands import Run
from zllm.backend.oracle.step import Step

if TYPE_CHECKING:
    from zllm.backend.oracle.backend import OracleBackend
    from zllm.backend.oracle.plan import OraclePlan


def hc_start(op: Op, plan: OraclePlan, backend: OracleBackend) -> Run:
    x = operands.array(op, 0, plan)
    streams = operands.heads(plan.array(op.outs[0]), op.spec.streams)
    return lambda step: np.copyto(streams, x[:, None])


def hc_split(op: Op, plan: OraclePlan, backend: OracleBackend) -> Run:
    x = operands.heads(operands.array(op, 0, plan), op.spec.streams)
    fn, base, scale = (operands.vector(op, i, backend) for i in (1, 2, 3))
    h, post, comb = (plan.array(out) for out in op.outs)

    def run(step: Step) -> None:
        h[:], post[:], mix = hyper_connection.split(x, fn, base, scale, op.spec)
        comb[:] = mix.reshape(comb.shape)

    return run


def hc_join(op: Op, plan: OraclePlan, backend: OracleBackend) -> Run:
    f, x, post, comb = (operands.array(op, i, plan) for i in range(4))
    n = post.shape[1]
    streams, out = operands.heads(x, n), operands.heads(plan.array(op.outs[0]), n)

    def run(step: Step) -> None:
        out[:] = hyper_connection.join(f, streams, post, comb.reshape(-1, n, n))

    return run


def hc_mean(op: Op, plan: OraclePlan, backend: OracleBackend) -> Run:
    x = operands.heads(operands.array(op, 0, plan), op.spec.streams)
    out = plan.array(op.outs[0])
    return lambda step: operands.discard(np.mean(x, axis=1, out=out))


def hc_head(op: Op, plan: OraclePlan, backend: OracleBackend) -> Run:
    x = operands.heads(operands.array(op, 0, plan), op.spec.streams)
    fn, base, scale = (operands.vector(op, i, backend) for i in (1, 2, 3))
    out = plan.array(op.outs[0])
    return lambda step: np.copyto(out, hyper_connection.head(x, fn, base, scale, op.spec))


LOWER = {
    "hc_start": hc_start,
    "hc_split": hc_split,
    "hc_join": hc_join,
    "hc_mean": hc_mean,
    "hc_head": hc_head,
}
