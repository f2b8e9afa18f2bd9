"""Manifold-constrained hyper-connections [2512.24880; 2409.19606]: several residual streams."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HyperSpec:
    streams: int  # N, hc_mult
    eps: float  # hc_eps, of gates and Sinkhorn
    norm_eps: float  # rms_norm_eps, of the weightless norm
    iterations: int  # hc_sinkhorn_iters; ends on columns
