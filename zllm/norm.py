"""RMSNorm [1910.07467]."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class RmsNormSpec:
    eps: float


def rms_norm(x: F32, w: F32, spec: RmsNormSpec, /, *, out: F32 | None = None) -> F32:
    """x / sqrt(mean(x²) + eps) ⊙ w over the last axis: [..., D], [D] -> [..., D]."""
    width = np.float32(x.shape[-1])
    mean_square = np.einsum("...d,...d->...", x, x)[..., None] / width
    scale = np.float32(1) / np.sqrt(mean_square + np.float32(spec.eps))
    out = np.multiply(x, scale, out=out)
    return np.multiply(out, w, out=out)
