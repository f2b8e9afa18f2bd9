"""The indexer of sparse attention as closures: its keys are cached, its choice is a value."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from zllm.attention import dsa
from zllm.backend.contract import Op
from zllm.backend.oracle import operands
from zllm.backend.oracle.operands import Run
from zllm.backend.oracle.step import Step

if TYPE_CHECKING:
    from zllm.backend.oracle.backend import OracleBackend
    from zllm.backend.oracle.plan import OraclePlan

F32 = NDArray[np.float32]

# Products of a query head with a key, per block of rows: they stay near the cache.
SCORED = 1 << 21


def index_append(op: Op, plan: OraclePlan, backend: OracleBackend) -> Run:
    k = operands.array(op, 0, plan)
    group = operands.cache(op, 1).group
    (keys,) = operands.storage(op, 1, backend)

    def run(step: Step) -> None:
        keys[step.row_slots[group]] = k

    return run


def select(op: Op, plan: OraclePlan, backend: OracleBackend) -> Run:
    spec: dsa.SelectSpec = op.spec
    q = operands.heads(operands.array(op, 0, plan), spec.heads)
    head_weights = operands.array(op, 1, plan)
    group = operands.cache(op, 2).group
    (keys,) = operands.storage(op, 2, backend)
    out = plan.array(op.outs[0])  # i32 [R, width]

    def run(step: Step) -> None:
        for span in step.spans:
            seen = keys[span.slots[group]]  # [S, e]
            count = max(1, SCORED // (spec.heads * span.length))
            for first in range(span.rows.start, span.rows.stop, count):
                rows = slice(first, min(first + count, span.rows.stop))
                own = step.positions[rows]
                out[rows] = dsa.select(q[rows], head_weights[rows], seen[: own[-1] + 1], own, spec)

    return run


LOWER = {"index_append": index_append, "select": select}
