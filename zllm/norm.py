"""RMSNorm [1910.07467] and LayerNorm [1607.06450]."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class RmsNormSpec:
    eps: float
    offset: float = 0.0  # 1 where a checkpoint stores w - 1


@dataclass(frozen=True, slots=True)
class LayerNormSpec:
    eps: float


@dataclass(frozen=True, slots=True)
class UnitNormSpec:
    """RMSNorm without a weight, of each run of `size` numbers of the last axis."""

    size: int
    eps: float


def rms_norm(x: F32, w: F32, spec: RmsNormSpec, /, *, out: F32 | None = None) -> F32:
    """x / sqrt(mean(x²) + eps) ⊙ (w + offset) over the last axis: [..., D], [D] -> [..., D]."""
    width = np.float32(x.shape[-1])
    mean_square = np.einsum("...d,...d->...", x, x)[..., None] / width
    scale = np.float32(1) / np.sqrt(mean_square + np.float32(spec.eps))
    out = np.multiply(x, scale, out=out)
    return np.multiply(out, w + np.float32(spec.offset) if spec.offset else w, out=out)


def unit_norm(x: F32, spec: UnitNormSpec, /, *, out: F32 | None = None) -> F32:
    """x / sqrt(mean(x²) + eps) over the last axis, of spec.size: the same shape."""
    return rms_norm(x, np.ones(spec.size, np.float32), RmsNormSpec(spec.eps), out=out)


def layer_norm(x: F32, w: F32, b: F32, spec: LayerNormSpec, /, *, out: F32 | None = None) -> F32:
    """(x - mean) / sqrt(biased variance + eps) ⊙ w + b over the last axis: the same shape."""
    centred = x - x.mean(axis=-1, keepdims=True)
    scale = np.float32(1) / np.sqrt(np.square(centred).mean(axis=-1, keepdims=True) + spec.eps)
    out = np.multiply(centred, scale.astype(np.float32), out=out)
    np.multiply(out, w, out=out)
    return np.add(out, b, out=out)
