"""k-pool: an indexer that scores pools of consecutive keys, and a tail of what is in no pool yet.

Axes: T rows, P tokens of a pool, e size of an index key. Pool p holds positions p·P … p·P + P - 1.
Its key depends on those tokens alone, so it is final once the last one exists.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from zllm.attention import dsa
from zllm.attention.dsa import SelectSpec

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]


def pool_keys(keys: F32, gates: F32, ape: F32, /) -> F32:
    """Per channel a softmax over the pool's tokens weighs their keys.

    keys, gates [pools, P, e]; ape [P, e] is added to the gates by place in the pool -> [pools, e].
    """
    logits = gates + ape
    weights: F32 = np.exp(logits - logits.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    return np.asarray((weights * keys).sum(axis=1))


def closed_by(first: int, count: int, pool: int, /) -> NDArray[np.int64]:
    """Positions [pools, P] of the pools that tokens first … first + count - 1 complete."""
    return np.arange(first // pool * pool, (first + count) // pool * pool).reshape(-1, pool)


def select(q: F32, head_weights: F32, keys: F32, own: NDArray[np.integer], spec: SelectSpec) -> I32:
    """The positions that each row attends to: [T, spec.width], ascending, -1 padded.

    A row chooses among the pools whose last token it sees, and attends to all tokens of the best
    top_k // P. With spec.tail also to those of the pool that is open at its position; where that
    is none, its own pool has to win like any other, and without a tail it may see nothing at all.

    q [T, I, e], head_weights [T, I], keys of all complete pools in order, own [T] positions.
    """
    complete = (own + 1) // spec.pool
    pools = dsa.best(dsa.score(q, head_weights, keys, spec), complete, spec.top_k // spec.pool)
    chosen = np.zeros((len(own), int(own.max()) + 1), np.bool_)
    members = np.repeat(pools, spec.pool, axis=1)[:, : chosen.shape[1]]
    chosen[:, : members.shape[1]] = members
    if spec.tail:
        at = np.arange(chosen.shape[1])
        chosen |= (at >= complete[:, None] * spec.pool) & (at <= own[:, None])
    return dsa.positions(chosen, spec.width)
