"""Which experts a token meets, and with what weights."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RouteSpec:
    """score: softmax | sigmoid | sqrt_softplus of the logits, or softmax_of_chosen."""

    score: str
    top_k: int
    normalise: bool = False  # weights are divided by their sum
    scale: float = 1.0  # routed_scaling_factor
    groups: int = 1  # n_group
    kept_groups: int = 1  # topk_group
