"""Manifold-constrained hyper-connections [2512.24880; 2409.19606]: several residual streams.

Axes: R rows, N streams, D width. The mixing matrix of a row is near doubly stochastic, so that
streams keep their size through any number of layers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from zllm.activation import sigmoid

F32 = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class HyperSpec:
    streams: int  # N, hc_mult
    eps: float  # hc_eps, of gates and Sinkhorn
    norm_eps: float  # rms_norm_eps, of the weightless norm
    iterations: int  # hc_sinkhorn_iters; ends on columns


def split(x: F32, fn: F32, base: F32, scale: F32, spec: HyperSpec, /) -> tuple[F32, F32, F32]:
    """What a sublayer reads of the streams, and how its result and they go on.

    x [R, N, D], fn [(2 + N)·N, N·D], base [(2 + N)·N], scale [3] -> the sublayer's input [R, D],
    post [R, N], comb [R, N, N].
    """
    n = spec.streams
    y = _normed(x, spec) @ fn.T
    pre = sigmoid(y[:, :n] * scale[0] + base[:n]) + np.float32(spec.eps)
    post = 2 * sigmoid(y[:, n : 2 * n] * scale[1] + base[n : 2 * n])
    comb = (y[:, 2 * n :] * scale[2] + base[2 * n :]).reshape(-1, n, n)
    return _weighted(pre, x), post, sinkhorn(comb, spec)


def sinkhorn(logits: F32, spec: HyperSpec, /) -> F32:
    """Rows and columns of e^logits normalised in turn [Sinkhorn 1967]: [..., N, N], the same."""
    eps = np.float32(spec.eps)
    comb: F32 = np.exp(logits - logits.max(axis=-1, keepdims=True))
    comb = comb / comb.sum(axis=-1, keepdims=True) + eps
    comb /= comb.sum(axis=-2, keepdims=True) + eps
    for _ in range(spec.iterations - 1):
        comb /= comb.sum(axis=-1, keepdims=True) + eps
        comb /= comb.sum(axis=-2, keepdims=True) + eps
    return comb


def join(f: F32, x: F32, post: F32, comb: F32, /) -> F32:
    """Stream k: post_k·f + Σ_j comb[j, k]·x_j, the transposed mix.

    f [R, D], x [R, N, D], post [R, N], comb [R, N, N] -> [R, N, D].
    """
    mixed: F32 = np.matmul(comb.swapaxes(1, 2), x)
    mixed += post[..., None] * f[:, None]
    return mixed


def head(x: F32, fn: F32, base: F32, scale: F32, spec: HyperSpec, /) -> F32:
    """The streams weighted by a gate: [R, N, D], fn [N, N·D], base [N], scale [1] -> [R, D]."""
    pre = sigmoid(_normed(x, spec) @ fn.T * scale[0] + base) + np.float32(spec.eps)
    return _weighted(pre, x)


def _normed(x: F32, spec: HyperSpec) -> F32:
    """All streams of a row as one vector of RMS 1, no weight: [R, N, D] -> [R, N·D]."""
    flat = x.reshape(x.shape[0], -1)
    mean_square = np.square(flat).mean(axis=1, keepdims=True, dtype=np.float32)
    return np.asarray(flat / np.sqrt(mean_square + np.float32(spec.norm_eps)))


def _weighted(pre: F32, x: F32) -> F32:
    return np.asarray(np.matmul(pre[:, None], x)[:, 0])
