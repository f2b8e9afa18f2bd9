"""Grouped-query attention [2305.13245]: query head h reads key/value head h·G//H."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class GqaSpec:
    heads: int  # H
    kv_heads: int  # G
    head_size: int  # K
    scale: float  # of the scores, usually K^-½
    rotated: int  # leading dimensions of each head that RoPE turns
    interleaved: bool = False  # RoPE pairs are (2j, 2j+1)


def attend(
    q: F32, k: F32, v: F32, visible: NDArray[np.bool_] | None, spec: GqaSpec, /, *, out: F32 | None = None
) -> F32:
    """softmax(q·kᵀ·scale) v for one sequence, softmax in f32.

    q [T, H, K]; k, v [G, S, K]; visible [T, S] or None (all). A row that sees nothing gives zeros.
    """
    rows, groups = q.shape[0], spec.heads // spec.kv_heads
    if out is None:
        out = np.empty_like(q)
    for g in range(spec.kv_heads):
        heads = slice(g * groups, (g + 1) * groups)
        query = q[:, heads].reshape(rows * groups, spec.head_size) * np.float32(spec.scale)
        scores = query @ k[g].T  # [T * H/G, S]
        if visible is not None:
            scores.reshape(rows, groups, -1)[~visible[:, None].repeat(groups, 1)] = -np.inf
        out[:, heads] = (softmax(scores) @ v[g]).reshape(rows, groups, spec.head_size)
    return out


def softmax(scores: F32) -> F32:
    """Over the last axis, in place. A row of -inf gives zeros."""
    peak = scores.max(axis=-1, keepdims=True, initial=-np.inf)
    np.subtract(scores, np.where(np.isfinite(peak), peak, np.float32(0)), out=scores)
    np.exp(scores, out=scores)
    total = scores.sum(axis=-1, keepdims=True)
    return np.divide(scores, np.where(total > 0, total, np.float32(1)), out=scores)
