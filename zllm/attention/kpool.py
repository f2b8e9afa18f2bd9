"""k-pool: an indexer that scores pools of consecutive keys, and a tail of what is in no pool yet.

Axes: R rows, P tokens of a pool, e size of an index key, S tokens cached. Pool p holds positions
p·P … p·P + P - 1. Its key depends on those tokens alone, so it is final once the last one exists.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from zllm.attention.dsa import SelectSpec

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]


def pool_keys(keys: F32, gates: F32, ape: F32, /) -> F32:
    """Per channel a softmax over the pool's tokens weighs their keys.

    keys, gates [pools, P, e], ape [P, e] (added to the gates, per place in the pool) -> [pools, e].
    """
    logits = gates + ape
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    return np.asarray((weights * keys).sum(axis=1))


def closed_pools(first: int, count: int, pool: int, /) -> range:
    """The pools that tokens first … first + count - 1 complete."""
    return range(first // pool, (first + count) // pool)


def complete_pools(positions: I32, pool: int, /) -> I32:
    """How many pools a row at each position may choose from: those whose last token it sees."""
    return np.asarray((positions + 1) // pool)


def positions_of(pools: I32, positions: I32, spec: SelectSpec, /) -> I32:
    """The positions that rows attend to: those of their pools, then the open pool's (the tail).

    pools [R, k] chosen pools in ascending order, -1 padded; positions [R] of the rows ->
    [R, spec.width], ascending, -1 padded. The tail is empty where a row completes a pool: such a
    row may not see itself. Without a tail a row may see nothing at all.
    """
    within = np.arange(spec.pool)
    members = pools[..., None] * spec.pool + within  # [R, k, P]
    members = np.where(pools[..., None] < 0, -1, members).reshape(len(pools), -1)
    found = np.full((len(pools), spec.width), -1, np.int32)
    found[:, : members.shape[1]] = members
    if spec.tail:
        start = complete_pools(positions, spec.pool) * spec.pool
        tail = start[:, None] + within[:-1]
        count = (pools >= 0).sum(axis=1) * spec.pool  # where the tail begins
        row, place = np.nonzero(tail <= positions[:, None])
        found[row, count[row] + place] = tail[row, place]
    return found
