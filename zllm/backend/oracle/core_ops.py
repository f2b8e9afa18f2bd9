"""Core ops as closures: embedding, norms, products, gates, and what a round emits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from zllm import activation, norm
from zllm.backend.contract import Op
from zllm.backend.oracle import operands
from zllm.backend.oracle.operands import Run
from zllm.backend.oracle.step import Step

if TYPE_CHECKING:
    from zllm.backend.oracle.backend import OracleBackend
    from zllm.backend.oracle.plan import OraclePlan

# Rows whose gates pass through the steps of an activation while they are in the cache.
GATED_ROWS = 32


def embed(op: Op, plan: OraclePlan, backend: OracleBackend) -> Run:
    table, out = operands.weight(op, 0, backend), plan.array(op.outs[0])
    if op.spec is None:
        return lambda step: table.rows(step.tokens, out)
    scale = np.float32(op.spec.scale)

    def run(step: Step) -> None:
        table.rows(step.tokens, out)
        np.multiply(out, scale, out=out)

    return run


def rms_norm(op: Op, plan: OraclePlan, backend: OracleBackend) -> Run:
    w = operands.vector(op, 1, backend)
    x, out = _runs(operands.array(op, 0, plan), w.size), _runs(plan.array(op.outs[0]), w.size)
    return lambda step: operands.discard(norm.rms_norm(x, w, op.spec, out=out))


def layer_norm(op: Op, plan: OraclePlan, backend: OracleBackend) -> Run:
    w, b = operands.vector(op, 1, backend), operands.vector(op, 2, backend)
    x, out = _runs(operands.array(op, 0, plan), w.size), _runs(plan.array(op.outs[0]), w.size)
    return lambda step: operands.discard(norm.layer_norm(x, w, b, op.spec, out=out))


def _runs(x: operands.F32, size: int) -> operands.F32:
    """[R, n·size] -> [R, n, size]: a norm of heads takes each by itself."""
    return x if x.shape[1] == size else x.reshape(x.shape[0], -1, size)


def linear(op: Op, plan: OraclePlan, backend: OracleBackend) -> Run:
    x, w = operands.array(op, 0, plan), operands.weight(op, 1, backend)
    out = operands.joined(op, plan)
    bias = operands.optional_vector(op, 2, backend)
    residual = operands.optional_array(op, 3, plan)
    scale = None if op.spec is None else np.float32(op.spec.scale)

    def run(step: Step) -> None:
        w.product(x, out)
        if bias is not None:
            np.add(out, bias, out=out)
        if scale is not None:
            np.multiply(out, scale, out=out)
        if residual is not None:
            np.add(out, residual, out=out)

    return run


def gated_linear(op: Op, plan: OraclePlan, backend: OracleBackend) -> Run:
    x, w = operands.array(op, 0, plan), operands.weight(op, 1, backend)
    out = plan.array(op.outs[0])
    rows, width = out.shape
    both = plan.scratch(rows * 2 * width).reshape(rows, 2 * width)
    bias = operands.optional_vector(op, 2, backend)

    def run(step: Step) -> None:
        w.product(x, both)
        if bias is not None:
            np.add(both, bias, out=both)
        for first in range(0, rows, GATED_ROWS):
            block = slice(first, first + GATED_ROWS)
            activation.gated(both[block, :width], both[block, width:], op.spec, out=out[block])

    return run


def gated(op: Op, plan: OraclePlan, backend: OracleBackend) -> Run:
    gate, up = operands.array(op, 0, plan), operands.array(op, 1, plan)
    out = plan.array(op.outs[0])
    return lambda step: operands.discard(activation.gated(gate, up, op.spec, out=out))


def add(op: Op, plan: OraclePlan, backend: OracleBackend) -> Run:
    x, y = operands.array(op, 0, plan), operands.array(op, 1, plan)
    out = plan.array(op.outs[0])
    return lambda step: operands.discard(np.add(x, y, out=out))


def soft_cap(op: Op, plan: OraclePlan, backend: OracleBackend) -> Run:
    x, out = operands.array(op, 0, plan), plan.array(op.outs[0])
    return lambda step: operands.discard(activation.soft_cap(x, op.spec, out=out))


def last_rows(op: Op, plan: OraclePlan, backend: OracleBackend) -> Run:
    x, out = operands.array(op, 0, plan), plan.array(op.outs[0])
    return lambda step: operands.discard(np.take(x, step.of("last_row"), axis=0, out=out))


def logits(op: Op, plan: OraclePlan, backend: OracleBackend) -> Run:
    plan.logits = operands.array(op, 0, plan)
    return lambda step: None


LOWER = {
    "embed": embed,
    "rms_norm": rms_norm,
    "layer_norm": layer_norm,
    "linear": linear,
    "gated_linear": gated_linear,
    "gated": gated,
    "add": add,
    "soft_cap": soft_cap,
    "last_rows": last_rows,
    "logits": logits,
}
