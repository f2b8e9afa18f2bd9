"""Sparse attention [2512.02556]: an indexer scores the keys, attention sees the best."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SelectSpec:
    """Score of key j: Σ_i w_i · relu(q_i·k_j · e^-½) over I index heads."""

    heads: int  # I, index_n_heads
    size: int  # e, index_head_dim
    top_k: int  # keys chosen, index_topk
    pool: int = 1  # P, index_kpool: keys are scored and chosen in pools of so many
    tail: bool = False  # a row also sees the tokens of the pool that is open at its position

    @property
    def width(self) -> int:
        """Positions of a row's selection, -1 padded."""
        return self.top_k + (self.pool - 1 if self.tail else 0)
