"""Activations of gated feed-forward layers [2002.05202]."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]

ACTIVATIONS = ("silu",)


@dataclass(frozen=True, slots=True)
class GatedSpec:
    activation: str


def gated(gate: F32, up: F32, spec: GatedSpec, /, *, out: F32 | None = None) -> F32:
    """activation(gate) ⊙ up: [R, F], [R, F] -> [R, F]. SiLU z·σ(z) [1702.03118]."""
    assert spec.activation == "silu"
    out = np.negative(gate, out=out)
    with np.errstate(over="ignore"):  # e^-z = inf gives σ(z) = 0, as it should
        np.exp(out, out=out)
    np.add(out, np.float32(1), out=out)
    np.divide(gate, out, out=out)
    return np.multiply(out, up, out=out)
