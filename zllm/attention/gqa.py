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
    window: int = 0  # a row sees this many positions, its own included; 0: all


def attend(
    q: F32,
    k: F32,
    v: F32,
    visible: NDArray[np.bool_] | None,
    spec: GqaSpec,
    /,
    *,
    sinks: F32 | None = None,
    out: F32 | None = None,
) -> F32:
    """softmax(q·kᵀ·scale) v for one sequence, softmax in f32.

    q [T, H, K]; k [G, S, K]; v [G, S, K], or of a head size of its own. visible [T, W] says which
    of the last W keys each row sees; it sees all before them. None: it sees all. A row that sees
    nothing gives zeros. sinks [H]: a logit per head that joins the softmax and whose share is
    dropped [2309.17453].
    """
    rows, kv_heads, size = q.shape[0], spec.kv_heads, spec.head_size
    shared = spec.heads // kv_heads  # query heads per key/value head
    scaled = (q * np.float32(spec.scale)).reshape(rows, kv_heads, shared, size)
    by_head = scaled.transpose(1, 0, 2, 3).reshape(kv_heads, rows * shared, size)
    scores: F32 = np.matmul(by_head, k.transpose(0, 2, 1))  # [G, T·H/G, S]
    if visible is not None:
        masked = scores.reshape(kv_heads, rows, shared, -1)[..., -visible.shape[1] :]
        np.copyto(masked, np.float32(-np.inf), where=~visible[:, None])
    if sinks is not None:
        sink = np.tile(sinks.reshape(kv_heads, 1, shared), (1, rows, 1)).reshape(kv_heads, -1, 1)
        weights, total = _exponentials(np.concatenate([scores, sink], axis=-1))
        weights = weights[..., :-1]
    else:
        weights, total = _exponentials(scores)
    heads: F32 = np.matmul(weights, v)
    np.divide(heads, total, out=heads)  # here, since K is shorter than S
    if out is None:
        out = np.empty((rows, spec.heads, v.shape[-1]), np.float32)
    by_row = heads.reshape(kv_heads, rows, shared, -1).transpose(1, 0, 2, 3)
    out.reshape(rows, kv_heads, shared, -1)[:] = by_row
    return out


def softmax(scores: F32) -> F32:
    """Over the last axis, in place. A row of -inf gives zeros."""
    weights, total = _exponentials(scores)
    return np.divide(weights, total, out=weights)


def _exponentials(scores: F32) -> tuple[F32, F32]:
    """exp(scores - largest) in place, and its sum over the last axis; a row of -inf: zeros."""
    peak: F32 = scores.max(axis=-1, keepdims=True)
    np.maximum(peak, np.finfo(np.float32).min, out=peak)
    np.subtract(scores, peak, out=scores)
    np.exp(scores, out=scores)
    total: F32 = scores.sum(axis=-1, keepdims=True)
    return scores, np.maximum(total, np.finfo(np.float32).tiny, out=total)
