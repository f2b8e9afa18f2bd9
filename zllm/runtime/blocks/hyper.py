"""A sublayer among residual streams [2512.24880]: read a mix of them, spread the result."""

from __future__ import annotations

from dataclasses import dataclass

from zllm.backend.capability import Resources
from zllm.backend.contract import Weight


@dataclass(frozen=True, slots=True)
class Mix:
    """What `hc_split` or `hc_head` needs at one site."""

    fn: Weight  # [(2 + N)·N, N·D]
    base: Weight  # [(2 + N)·N]
    scale: Weight  # [3]


def load(r: Resources, prefix: str, *, read_by: str = "hc_split") -> Mix:
    """From the canonical names `{prefix}fn`, `{prefix}base` and `{prefix}scale`."""
    fn = r.weight(f"{prefix}fn", read_by=read_by)
    return Mix(fn, r.weight(f"{prefix}base"), r.weight(f"{prefix}scale"))
