"""KDA [2510.26692]: a gated delta rule with one decay per key channel."""

from __future__ import annotations

from dataclasses import dataclass


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
