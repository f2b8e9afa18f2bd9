"""How far a model's next-token distributions are from a reference's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]

BLOCK_ELEMENTS = 1 << 22  # logits taken to f64 at a time


@dataclass(slots=True)
class Divergence:
    """Fed with the logits of both for the same tokens; sums in f64."""

    kl: list[F64] = field(default_factory=list)  # per position: Σ p·(ln p - ln q), p the reference
    agreed: int = 0  # positions where both have the same likeliest token
    surprise: float = 0.0  # -Σ ln q of the tokens that follow
    reference_surprise: float = 0.0
    followed: int = 0  # positions that another token follows

    def add(self, logits: F32, reference: F32, tokens: Sequence[int]) -> None:
        """Logits [T, V] of both for T tokens of one text: row t is for what follows token t."""
        assert logits.shape == reference.shape and len(tokens) == len(logits), logits.shape
        following = np.asarray(tokens[1:], np.int64)
        rows = max(1, BLOCK_ELEMENTS // logits.shape[1])
        for first in range(0, len(logits), rows):
            last = first + rows
            self._add_rows(logits[first:last], reference[first:last], following[first:last])

    def _add_rows(self, logits: F32, reference: F32, following: NDArray[np.int64]) -> None:
        q, p = log_softmax(logits), log_softmax(reference)
        self.kl.append(np.einsum("tv,tv->t", np.exp(p), p - q))
        self.agreed += int((logits.argmax(axis=1) == reference.argmax(axis=1)).sum())
        at = np.arange(len(following)), following
        self.surprise -= float(q[at].sum())
        self.reference_surprise -= float(p[at].sum())
        self.followed += len(following)

    def result(self) -> dict[str, Any]:
        """KL in nats; perplexities are null where no token has a successor."""
        kl = np.concatenate(self.kl)
        known = self.followed > 0
        perplexities = [
            math.exp(total / self.followed) if known else None
            for total in (self.surprise, self.reference_surprise)
        ]
        return {
            "tokens": kl.size,
            "kl_mean": float(kl.mean()),
            "kl_p99": float(np.quantile(kl, 0.99)),
            "kl_max": float(kl.max()),
            "top1_agreement": self.agreed / kl.size,
            "perplexity": perplexities[0],
            "reference_perplexity": perplexities[1],
        }


def log_softmax(logits: F32) -> F64:
    """Over the last axis, in f64."""
    shifted = logits - logits.max(axis=-1, keepdims=True).astype(np.float64)
    total: F64 = np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    result: F64 = shifted - total
    return result
