"""Activations of gated feed-forward layers [2002.05202]."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class GatedSpec:
    """How a gate meets what it multiplies; with limit l both are clamped before the activation."""

    activation: str  # silu | gelu_tanh | swiglu_oai
    limit: float = 0.0  # 0: none. gate ≤ l, -l ≤ up ≤ l
    alpha: float = 1.702  # of swiglu_oai


@dataclass(frozen=True, slots=True)
class SoftCapSpec:
    cap: float


def sigmoid(x: F32) -> F32:
    """1 / (1 + e^-x): the same shape."""
    with np.errstate(over="ignore"):  # e^-x = inf gives 0, as it should
        return np.asarray(1 / (1 + np.exp(-x)), np.float32)


def gated(gate: F32, up: F32, spec: GatedSpec, /, *, out: F32 | None = None) -> F32:
    """activation(gate) ⊙ up: [R, F], [R, F] -> [R, F].

    silu z·σ(z) [1702.03118]; gelu_tanh, the tanh form of GELU [1606.08415]; swiglu_oai
    z·σ(alpha z) ⊙ (up + 1) [2508.10925].
    """
    if spec.limit:
        limit = np.float32(spec.limit)
        gate, up = np.minimum(gate, limit), np.clip(up, -limit, limit)
    if spec.activation == "gelu_tanh":
        inner = np.float32(np.sqrt(2 / np.pi)) * (gate + np.float32(0.044715) * gate**3)
        half: F32 = np.float32(0.5) * gate * (1 + np.tanh(inner))
        return np.multiply(half, up, out=out)
    if spec.activation == "swiglu_oai":
        sharpness, up = np.float32(spec.alpha), up + np.float32(1)
    else:
        assert spec.activation == "silu", spec
        sharpness = np.float32(1)
    out = np.multiply(gate, -sharpness, out=out)
    with np.errstate(over="ignore"):  # e^-z = inf gives σ(z) = 0, as it should
        np.exp(out, out=out)
    np.add(out, np.float32(1), out=out)
    np.divide(gate, out, out=out)
    return np.multiply(out, up, out=out)


def soft_cap(x: F32, spec: SoftCapSpec, /, *, out: F32 | None = None) -> F32:
    """c·tanh(x / c) [2408.00118]: the same shape."""
    out = np.divide(x, np.float32(spec.cap), out=out)
    np.tanh(out, out=out)
    return np.multiply(out, np.float32(spec.cap), out=out)
