"""Compressed attention as closures: raw keys and entries are cached, the choice is a value."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from zllm import norm
from zllm.attention import compressed, kpool
from zllm.backend.contract import Op
from zllm.backend.oracle import operands
from zllm.backend.oracle.operands import Run
from zllm.backend.oracle.step import Span, Step

if TYPE_CHECKING:
    from zllm.backend.oracle.backend import OracleBackend
    from zllm.backend.oracle.plan import OraclePlan

# Query rows per block, fewer if their heads' scores would be more than SCORED numbers: a block
# reads the keys and entries that any of its rows sees.
ATTEND_ROWS, SCORED = 64, 1 << 21


def unit_norm(op: Op, plan: OraclePlan, backend: OracleBackend) -> Run:
    count = op.outs[0].shape[1] // op.spec.size
    x = operands.heads(operands.array(op, 0, plan), count)
    out = operands.heads(plan.array(op.outs[0]), count)
    return lambda step: operands.discard(norm.unit_norm(x, op.spec, out=out))


def grouped_linear(op: Op, plan: OraclePlan, backend: OracleBackend) -> Run:
    groups = op.spec.groups
    x, w = operands.heads(operands.array(op, 0, plan), groups), operands.weight(op, 1, backend)
    out = operands.heads(plan.array(op.outs[0]), groups)
    rows = out.shape[2]

    def run(step: Step) -> None:
        for group in range(groups):
            w.product(x[:, group], out[:, group], group * rows)

    return run


def compress_append(op: Op, plan: OraclePlan, backend: OracleBackend) -> Run:
    spec: compressed.CompressorSpec = op.spec
    kv, gate = operands.array(op, 0, plan), operands.array(op, 1, plan)
    group = op.cache(2).group
    keys, gates, entries = operands.storage(op, 2, backend)
    ape, weight, table = (operands.vector(op, i, backend) for i in (3, 4, 5))

    def run(step: Step) -> None:
        keys[step.row_slots[group]] = kv
        gates[step.row_slots[group]] = gate
        for span in step.spans:
            count = span.rows.stop - span.rows.start
            closed = kpool.closed_by(span.first_position, count, spec.rate)  # [W, m]
            read = compressed.read_by(closed, spec)
            where = span.slots_at(group, np.maximum(read, 0))
            made = compressed.entries(
                (keys[where], gates[where]), read, (ape, weight), table[closed[:, 0]], spec
            )
            entries[span.slots_at(group, closed[:, -1])] = made

    return run


def select_entries(op: Op, plan: OraclePlan, backend: OracleBackend) -> Run:
    spec: compressed.SelectEntriesSpec = op.spec
    heads = spec.index.heads
    q = operands.heads(operands.array(op, 0, plan), heads)
    head_weights = operands.array(op, 1, plan)
    group = op.cache(2).group
    *_, entries = operands.storage(op, 2, backend)
    out = plan.array(op.outs[0])  # i32 [R, k]

    def run(step: Step) -> None:
        for span, rows in _blocks(step, lambda span: heads * (span.length // spec.rate)):
            own = step.positions[rows]
            keys = entries[_entry_slots(span, group, own, spec.rate)]
            out[rows] = compressed.select(q[rows], head_weights[rows], keys, own, spec)

    return run


def attend_compressed(op: Op, plan: OraclePlan, backend: OracleBackend) -> Run:
    spec: compressed.CompressedSpec = op.spec
    q = operands.heads(operands.array(op, 0, plan), spec.heads)
    out = operands.heads(plan.array(op.outs[0]), spec.heads)
    group = op.cache(1).group
    (raw,) = operands.storage(op, 1, backend)
    sinks = operands.vector(op, 2, backend)
    entries = operands.storage(op, 3, backend)[-1] if spec.rate else raw[:0]
    chosen = operands.optional_array(op, 4, plan)  # i32 [R, k]

    def most_keys(span: Span) -> int:
        return spec.window + (span.length // spec.rate if spec.rate else 0)

    def run(step: Step) -> None:
        for span, rows in _blocks(step, lambda span: spec.heads * most_keys(span)):
            own = step.positions[rows]
            near = np.arange(max(0, int(own[0]) - spec.window + 1), int(own[-1]) + 1)
            seen = compressed.in_window(own, near, spec.window)
            far = np.empty(0, np.int64)  # slots of entries
            if spec.rate:
                far = _entry_slots(span, group, own, spec.rate)
                of_rows = None if chosen is None else chosen[rows].view(np.int32)
                allowed = compressed.seen_entries(own, of_rows, spec.rate)
                far, allowed = far[allowed.any(axis=0)], allowed[:, allowed.any(axis=0)]
                seen = np.concatenate([seen, allowed], axis=1)
            keys = raw[span.slots_at(group, near)]
            compressed.attend(q[rows], keys, entries[far], seen, spec, sinks=sinks, out=out[rows])

    return run


def _blocks(step: Step, scores: Callable[[Span], int]) -> Iterator[tuple[Span, slice]]:
    """Every sequence's rows, cut; `scores`: the numbers that a row of the sequence makes."""
    for span in step.spans:
        count = max(1, min(ATTEND_ROWS, SCORED // max(1, scores(span))))
        for first in range(span.rows.start, span.rows.stop, count):
            yield span, slice(first, min(first + count, span.rows.stop))


def _entry_slots(span: Span, group: str, own: NDArray[np.int32], rate: int) -> NDArray[np.int64]:
    """Where the entries lie that the last of the rows sees: with the last token of each window."""
    count = int(compressed.complete(own[-1:], rate)[0])
    return span.slots_at(group, np.arange(1, count + 1) * rate - 1)


LOWER = {
    "unit_norm": unit_norm,
    "grouped_linear": grouped_linear,
    "compress_append": compress_append,
    "select_entries": select_entries,
    "attend_compressed": attend_compressed,
}
