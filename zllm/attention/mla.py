"""Multi-head latent attention [2405.04434, 2412.19437]: keys and values unfold from one latent."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MlaSpec:
    """Per head a query of n + r numbers, n without position first; values of v numbers."""

    heads: int  # H
    nope: int  # n, qk_nope_head_dim
    rotated: int  # r, qk_rope_head_dim; may be 0
    value: int  # v, v_head_dim
    rank: int  # of the latent, kv_lora_rank
    scale: float
