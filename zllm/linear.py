"""The scaled matrix product's spec; the product itself is each backend's own."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LinearSpec:
    """scale · (x·wᵀ + bias) + residual."""

    scale: float


@dataclass(frozen=True, slots=True)
class GroupedLinearSpec:
    """Block-diagonal product: each run of columns of x meets its own run of rows."""

    groups: int
