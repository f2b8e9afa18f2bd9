"""Sparse attention [2512.02556]: an indexer scores the keys, attention sees the best."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class SelectSpec:
    """Score of key j: Σ_i w_i · relu(q_i·k_j · e^-½) over I index heads."""

    heads: int  # I, index_n_heads
    size: int  # e, index_head_dim
    top_k: int  # keys chosen, index_topk
    pool: int = 1  # P, index_kpool: keys are scored and chosen in pools of so many
    tail: bool = False  # a row also sees the tokens of the pool that is open at its position

    @property
    def width(self) -> int:
        """Positions of a row's selection, -1 padded."""
        return self.top_k + (self.pool - 1 if self.tail else 0)


def score(q: F32, head_weights: F32, keys: F32, spec: SelectSpec, /) -> F32:
    """How much each row wants each key: q [T, I, e], head_weights [T, I], keys [S, e] -> [T, S]."""
    rows = q.reshape(-1, spec.size)
    hits: F32 = np.matmul(rows, keys.T).reshape(*q.shape[:2], len(keys))  # [T, I, S]
    np.multiply(hits, np.float32(spec.size**-0.5), out=hits)
    np.maximum(hits, np.float32(0), out=hits)
    wanted: F32 = np.matmul(head_weights[:, None], hits)[:, 0]
    return wanted


def best(scores: F32, candidates: NDArray[np.integer], count: int, /) -> Mask:
    """The `count` highest of each row's first `candidates`, all if there are fewer: [T, S].

    Equal scores go to the lower index: relu makes exact zeros, so they do occur.
    """
    allowed: Mask = np.arange(scores.shape[1]) < candidates[:, None]
    if count >= scores.shape[1]:
        return allowed
    masked = np.where(allowed, scores, np.float32(-np.inf))
    last: F32 = np.partition(masked, -count, axis=1)[:, -count, None]  # the lowest that is chosen
    above: Mask = masked > last
    level: Mask = masked == last
    left = count - np.count_nonzero(above, axis=1, keepdims=True)
    chosen: Mask = above | (level & (np.cumsum(level, axis=1) <= left))
    return chosen & allowed


def positions(chosen: Mask, width: int, /) -> I32:
    """The set of each row as ascending positions, -1 padded: [T, S] -> [T, width]."""
    out = np.full((len(chosen), width), -1, np.int32)
    rows, columns = np.nonzero(chosen)
    out[rows, (np.cumsum(chosen, axis=1) - 1)[rows, columns]] = columns
    return out


def select(q: F32, head_weights: F32, keys: F32, own: NDArray[np.integer], spec: SelectSpec) -> I32:
    """The positions that each row attends to, of those up to its own: [T, top_k].

    q [T, I, e], head_weights [T, I], keys [S, e] of positions 0 … S-1, own [T].
    """
    chosen = best(score(q, head_weights, keys, spec), own + 1, spec.top_k)
    return positions(chosen, spec.width)
