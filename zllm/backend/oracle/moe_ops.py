"""Mixture of experts as closures: routing, and the chosen experts' products."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from zllm.backend.contract import Op
from zllm.backend.oracle import operands
from zllm.backend.oracle.operands import F32, Run
from zllm.backend.oracle.resident import Resident
from zllm.backend.oracle.step import Step
from zllm.errors import LoadError
from zllm.moe import experts as expert_layers
from zllm.moe import routing

if TYPE_CHECKING:
    from zllm.backend.oracle.backend import OracleBackend
    from zllm.backend.oracle.plan import OraclePlan


def route(op: Op, plan: OraclePlan, backend: OracleBackend) -> Run:
    logits, bias = operands.array(op, 0, plan), operands.optional_vector(op, 1, backend)
    ids, weights = plan.array(op.outs[0]), plan.array(op.outs[1])

    def run(step: Step) -> None:
        ids[:], weights[:] = routing.route(logits, op.spec, bias=bias)

    return run


def route_by_token(op: Op, plan: OraclePlan, backend: OracleBackend) -> Run:
    logits, table = operands.array(op, 0, plan), operands.weight(op, 1, backend)
    named, experts = table.dense(), logits.shape[1]
    if not ((named >= 0) & (named < experts)).all():
        raise LoadError(
            f"a table of experts by token names experts from {named.min():g} to {named.max():g}; "
            f"the layer has {experts}"
        )
    ids, weights = plan.array(op.outs[0]), plan.array(op.outs[1])
    chosen = np.empty(ids.shape, np.float32)

    def run(step: Step) -> None:
        table.rows(step.tokens, chosen)
        ids[:], weights[:] = routing.route_by_token(logits, chosen.astype(np.int32), op.spec)

    return run


def experts(op: Op, plan: OraclePlan, backend: OracleBackend) -> Run:
    x, ids, weights = (operands.array(op, i, plan) for i in range(3))
    gate_up, down = (_rows_product(operands.weight(op, i, backend)) for i in (3, 4))
    biases = None
    if op.ins[5] is not None:
        biases = operands.vector(op, 5, backend), operands.vector(op, 6, backend)
    out = plan.array(op.outs[0])

    def run(step: Step) -> None:
        routed = ids.view(np.int32), weights
        expert_layers.experts(x, routed, gate_up, down, op.spec, biases=biases, out=out)

    return run


def _rows_product(w: Resident) -> expert_layers.RowsProduct:
    def product(x: F32, first: int, count: int) -> F32:
        out = np.empty((x.shape[0], count), np.float32)
        w.product(x, out, first)
        return out

    return product


LOWER = {"route": route, "route_by_token": route_by_token, "experts": experts}
