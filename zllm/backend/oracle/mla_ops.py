"""Multi-head latent attention as closures over arrays and a cache of latents."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from zllm.attention import mla
from zllm.backend.contract import Op
from zllm.backend.oracle import operands
from zllm.backend.oracle.operands import Run
from zllm.backend.oracle.step import Span, Step

if TYPE_CHECKING:
    from zllm.backend.oracle.backend import OracleBackend
    from zllm.backend.oracle.plan import OraclePlan

F32 = NDArray[np.float32]

# Query rows per attention block: scores of a block stay near the cache, and causal blocks skip
# the keys that none of their rows may see.
ATTEND_ROWS = 64
# Numbers that a block of rows gathers, when each of its rows sees keys of its own.
GATHERED = 1 << 20


def latent_append(op: Op, plan: OraclePlan, backend: OracleBackend) -> Run:
    latent, k_rope = operands.array(op, 0, plan), operands.optional_array(op, 1, plan)
    group = op.cache(2).group
    (latents,) = operands.storage(op, 2, backend)
    rank = latent.shape[1]

    def run(step: Step) -> None:
        slots = step.row_slots[group]
        latents[slots, :rank] = latent
        if k_rope is not None:
            latents[slots, rank:] = k_rope

    return run


def attend_latent(op: Op, plan: OraclePlan, backend: OracleBackend) -> Run:
    spec: mla.MlaSpec = op.spec
    q = operands.heads(operands.array(op, 0, plan), spec.heads)
    out = operands.heads(plan.array(op.outs[0]), spec.heads)
    kv_b, group = operands.weight(op, 1, backend), op.cache(2).group
    (latents,) = operands.storage(op, 2, backend)
    chosen = operands.optional_array(op, 3, plan)  # i32 [R, k]

    def run(step: Step) -> None:
        unfold = kv_b.block(0, kv_b.shape[0])
        for span in step.spans:
            slots = span.slots[group]
            if chosen is None:
                _dense(q, latents[slots], unfold, span, spec, out)
            else:
                _sparse(q, latents, unfold, span, slots, chosen, spec, out)

    return run


def _dense(q: F32, seen: F32, unfold: F32, span: Span, spec: mla.MlaSpec, out: F32) -> None:
    """A sequence's rows over all of its latents `seen` [S, R+r]."""
    if mla.absorbed_is_cheaper(span.rows.stop - span.rows.start, span.length, spec):
        for rows, keys in _causal_blocks(span):
            mla.attend_absorbed(q[rows], seen[:keys], unfold, _own(rows), spec, out=out[rows])
        return
    k, v = mla.expand(seen, unfold, spec)
    for rows, keys in _causal_blocks(span):
        mla.attend_expanded(q[rows], k[:, :keys], v[:, :keys], _own(rows), spec, out=out[rows])


def _sparse(
    q: F32,
    latents: F32,
    unfold: F32,
    span: Span,
    slots: slice | NDArray[np.int64],
    chosen: NDArray[np.float32] | NDArray[np.int32],
    spec: mla.MlaSpec,
    out: F32,
) -> None:
    """A sequence's rows over the positions chosen for each; the latents of a block are gathered."""
    count = max(1, GATHERED // (chosen.shape[1] * latents.shape[1]))
    for first in range(span.rows.start, span.rows.stop, count):
        rows = slice(first, min(first + count, span.rows.stop))
        picked = chosen[rows]
        picked = picked[:, : max(1, int((picked >= 0).sum(axis=1).max()))]  # padding comes last
        at = np.where(picked < 0, np.maximum(picked[:, :1], 0), picked)  # nothing new is read
        where = slots.start + at if isinstance(slots, slice) else slots[at]
        mla.attend_chosen(q[rows], latents[where], unfold, picked >= 0, spec, out=out[rows])


def _causal_blocks(span: Span) -> Iterator[tuple[slice, int]]:
    """Rows of a block, and how many of the sequence's positions its last row sees."""
    for first in range(span.rows.start, span.rows.stop, ATTEND_ROWS):
        rows = slice(first, min(first + ATTEND_ROWS, span.rows.stop))
        yield rows, span.first_position + rows.stop - span.rows.start


def _own(rows: slice) -> NDArray[np.bool_] | None:
    """Which of a block's own positions each of its rows sees; None if there is nothing to hide."""
    count = rows.stop - rows.start
    return None if count == 1 else np.tri(count, dtype=np.bool_)


LOWER = {"latent_append": latent_append, "attend_latent": attend_latent}
