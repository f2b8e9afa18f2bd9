"""KDA [2510.26692]: a short convolution and a gated delta rule with one decay per key channel.

Axes: T tokens of one sequence in order, C channels, H heads, d head size of keys and values. Both
stateful functions continue from a state and return the next one, so any split gives the same.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from zllm.activation import sigmoid

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]

L2_EPS = 1e-6  # flash-linear-attention, fla/modules/l2norm.py
SOFTPLUS_LINEAR = 20.0  # torch.nn.functional.softplus: beyond it softplus(a) = a

CHUNK = 64  # tokens; another size changes only rounding
# Rows of a chunk whose decays are taken pair by pair; between blocks they factor through the
# decay at the block's first row, and no exponent is above 0.
BLOCK = 16


@dataclass(frozen=True, slots=True)
class ConvSpec:
    """Depthwise causal convolution of `kernel` taps, then SiLU."""

    kernel: int  # the last tap meets the current token


@dataclass(frozen=True, slots=True)
class DecaySpec:
    """lower_bound g: log decay g·σ(r·a), r = e^A_log; 0: -r·softplus(a)."""

    heads: int  # H
    head_size: int  # d
    lower_bound: float = 0.0


@dataclass(frozen=True, slots=True)
class DeltaSpec:
    heads: int  # H
    head_size: int  # d, of keys and values


def conv(x: F32, w: F32, past: F32, /) -> tuple[F32, F32]:
    """SiLU of Σ_i w[:, i] ⊙ x[t - kernel + 1 + i]: [T, C], w [C, kernel] -> [T, C].

    past [kernel - 1, C]: the inputs before x, zeros at a sequence's start; the second result is
    that of the next call.
    """
    count, kernel = x.shape[0], w.shape[1]
    inputs = np.concatenate([past, x])
    y = np.zeros_like(x)
    for tap in range(kernel):
        y += w[:, tap] * inputs[tap : tap + count]
    return y * sigmoid(y), inputs[count:]


def decay(a: F32, a_log: F32, dt_bias: F32, spec: DecaySpec, /) -> F32:
    """Log decay per key channel, none above 0: [T, H·d], a_log [H], dt_bias [H·d] -> [T, H·d]."""
    rate = np.exp(a_log)[:, None]
    biased = (a + dt_bias).reshape(-1, spec.heads, spec.head_size)
    if spec.lower_bound:
        g = np.float32(spec.lower_bound) * sigmoid(rate * biased)
    else:
        softplus = np.log1p(np.exp(np.minimum(biased, np.float32(SOFTPLUS_LINEAR))))
        g = -rate * np.where(biased > SOFTPLUS_LINEAR, biased, softplus)
    return g.reshape(a.shape)


def l2_norm(x: F32) -> F32:
    """x / sqrt(Σx² + eps) over the last axis."""
    return np.asarray(x / np.sqrt(np.square(x).sum(-1, keepdims=True) + np.float32(L2_EPS)))


def gated_norm(x: F32, gate: F32, w: F32, eps: float, /) -> F32:
    """rms_norm of each head ⊙ σ(gate): [T, H, d], [T, H, d], w [d] -> [T, H, d]."""
    mean_square = np.square(x).mean(-1, keepdims=True, dtype=np.float32)
    normed = x / np.sqrt(mean_square + np.float32(eps))
    return np.asarray(normed * w * sigmoid(gate))


def delta(qkv: tuple[F32, F32, F32], g: F32, beta: F32, state: F32, /) -> tuple[F32, F32]:
    """The gated delta rule from projections: q, k, v, log decay g [T, H, d], beta [T, H] before σ.

    q and k are L2-normed, q scaled by d^-½. One token takes the recurrence, more take chunks.
    Returns o [T, H, d] and the state [H, d, d] after the last token; state: that before the first.
    """
    q, k, v = qkv
    q = l2_norm(q) * np.float32(q.shape[-1] ** -0.5)
    rule = recurrent if q.shape[0] == 1 else chunked
    return rule((q, l2_norm(k), v), g, sigmoid(beta), state)


def recurrent(qkv: tuple[F32, F32, F32], g: F32, beta: F32, state: F32, /) -> tuple[F32, F32]:
    """Token by token: decay, write β(v - Mᵀk) at k, read at q. Shapes as in `delta`."""
    o, state = np.empty_like(qkv[2]), state.copy()
    for t, (q, k, v) in enumerate(zip(*qkv, strict=True)):
        state *= np.exp(g[t])[..., None]
        error = beta[t][:, None] * (v - _read(state, k))  # [H, d]
        state += k[..., None] * error[:, None]
        o[t] = _read(state, q)
    return o, state


def _read(state: F32, at: F32) -> F32:
    """Mᵀ x per head: [H, d, d], [H, d] -> [H, d]."""
    return np.asarray(np.matmul(at[:, None], state)[:, 0])


def chunked(
    qkv: tuple[F32, F32, F32], g: F32, beta: F32, state: F32, /, *, chunk: int = CHUNK
) -> tuple[F32, F32]:
    """`recurrent` in products of matrices, `chunk` tokens at a time."""
    o = np.empty_like(qkv[2])
    for first in range(0, len(g), chunk):
        part = slice(first, first + chunk)
        q, k, v, decays = (np.ascontiguousarray(x[part].swapaxes(0, 1)) for x in (*qkv, g))
        heads, state = _chunk(q, k, v, decays, beta[part].T[..., None], state)
        o[part] = heads.swapaxes(0, 1)
    return o, state


def _chunk(q: F32, k: F32, v: F32, g: F32, beta: F32, state: F32) -> tuple[F32, F32]:
    """One chunk of [H, T, d], beta [H, T, 1]. `written` is what each token adds at its key."""
    # f64, since the decay between two tokens is a small difference of two long sums.
    total = np.cumsum(g, axis=1, dtype=np.float64)
    since_start = _exp(total)
    written = beta * (v - np.matmul(k * since_start, state))
    overlap = beta * _decayed_products(k, k, total)
    for t in range(1, g.shape[1]):  # forward substitution with the strictly lower triangle
        written[:, t] -= np.matmul(overlap[:, t, None, :t], written[:, :t])[:, 0]
    o = np.matmul(q * since_start, state)
    o += np.matmul(np.tril(_decayed_products(q, k, total)), written)
    state = since_start[:, -1, :, None] * state
    state += np.matmul((k * _exp(total[:, -1:] - total)).swapaxes(1, 2), written)
    return o, state


def _decayed_products(x: F32, k: F32, total: F64) -> F32:
    """Σ_c x[i, c] k[j, c] e^(total[i, c] - total[j, c]) for j ≤ i: [H, T, d] -> [H, T, T].

    What stands above the diagonal is not defined.
    """
    heads, count, _ = x.shape
    products = np.zeros((heads, count, count), np.float32)
    for first in range(0, count, BLOCK):
        rows = slice(first, first + BLOCK)
        origin = total[:, first : first + 1]
        early = k[:, :first] * _exp(origin - total[:, :first])
        late = x[:, rows] * _exp(total[:, rows] - origin)
        products[:, rows, :first] = np.matmul(late, early.swapaxes(1, 2))
        span = np.minimum(total[:, rows, None] - total[:, None, rows], 0)  # [H, i, j, d]
        pairs = _exp(span) * k[:, None, rows]
        products[:, rows, rows] = np.matmul(pairs, x[:, rows, :, None])[..., 0]
    return products


def _exp(x: F64) -> F32:
    return np.exp(x.astype(np.float32))
