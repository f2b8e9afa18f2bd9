"""A gated feed-forward layer [2002.05202]: a whole layer's, or an expert that every token meets."""

from __future__ import annotations

from dataclasses import dataclass

from zllm.activation import GatedSpec
from zllm.backend.capability import Core, Resources
from zllm.backend.contract import Value, Weight


@dataclass(frozen=True, slots=True)
class FeedForward:
    gate_up: Weight  # [2F, D]
    down: Weight  # [D, F]
    gated: GatedSpec


def load(r: Resources, prefix: str, gated: GatedSpec) -> FeedForward:
    """From the canonical names `{prefix}gate`, `{prefix}up` and `{prefix}down`."""
    gate_up = r.weight(f"{prefix}gate", f"{prefix}up")
    return FeedForward(gate_up, r.weight(f"{prefix}down"), gated)


def feed_forward(ops: Core, w: FeedForward, h: Value, residual: Value | None = None) -> Value:
    """down(activation(gate·h) ⊙ up·h) + residual: [R, D] -> [R, D]."""
    f = ops.gated_linear(h, w.gate_up, w.gated)  # [R, F]
    return ops.linear(f, w.down, residual=residual)
