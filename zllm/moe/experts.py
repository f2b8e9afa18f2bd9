"""The chosen experts' gated feed-forward layers, weighted and summed."""

from __future__ import annotations

from dataclasses import dataclass

from zllm.activation import GatedSpec


@dataclass(frozen=True, slots=True)
class ExpertsSpec:
    experts: int  # E
    width: int  # F of one expert
    gated: GatedSpec
    interleaved: bool = False  # gate and up rows alternate, else gate rows come first
