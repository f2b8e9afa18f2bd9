"""The indexer of sparse attention as closures: its keys are cached, its choice is a value."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from zllm.attention import dsa, kpool
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
    if op.ins[2] is not None:
        return _pooled_append(op, plan, backend)
    k = operands.array(op, 0, plan)
    group = op.cache(1).group
    (keys,) = operands.storage(op, 1, backend)

    def run(step: Step) -> None:
        keys[step.row_slots[group]] = k

    return run


def _pooled_append(op: Op, plan: OraclePlan, backend: OracleBackend) -> Run:
    k, gate = operands.array(op, 0, plan), operands.array(op, 2, plan)
    group = op.cache(1).group
    keys, gates, pools = operands.storage(op, 1, backend)
    ape = operands.vector(op, 3, backend)  # [P, e]

    def run(step: Step) -> None:
        keys[step.row_slots[group]] = k
        gates[step.row_slots[group]] = gate
        for span in step.spans:
            count = span.rows.stop - span.rows.start
            closed = kpool.closed_by(span.first_position, count, len(ape))
            where = span.slots_at(group, closed)  # [pools, P]
            pools[where[:, -1]] = kpool.pool_keys(keys[where], gates[where], ape)

    return run


def select(op: Op, plan: OraclePlan, backend: OracleBackend) -> Run:
    spec: dsa.SelectSpec = op.spec
    q = operands.heads(operands.array(op, 0, plan), spec.heads)
    head_weights = operands.array(op, 1, plan)
    group = op.cache(2).group
    *_, keys = operands.storage(op, 2, backend)  # of tokens or pools, the last of the arrays
    choose = dsa.select if spec.pool == 1 else kpool.select
    out = plan.array(op.outs[0])  # i32 [R, width]

    def run(step: Step) -> None:
        for span in step.spans:
            seen = keys[_last_of_pools(span.slots[group], spec.pool)]  # [S, e] or [S / P, e]
            count = max(1, SCORED // (spec.heads * span.length))
            for first in range(span.rows.start, span.rows.stop, count):
                rows = slice(first, min(first + count, span.rows.stop))
                own = step.positions[rows]
                visible = seen[: (int(own[-1]) + 1) // spec.pool]
                out[rows] = choose(q[rows], head_weights[rows], visible, own, spec)

    return run


def _last_of_pools(slots: slice | NDArray[np.int64], pool: int) -> slice | NDArray[np.int64]:
    """Where complete pools keep their keys: in the slot of their last token."""
    if isinstance(slots, slice):
        return slice(slots.start + pool - 1, slots.stop, pool)
    return slots[pool - 1 :: pool]


LOWER = {"index_append": index_append, "select": select}
