"""From a model's rotary parameters to the spec of a table."""

from __future__ import annotations

from zllm.model_spec.rope import Rope
from zllm.rope import RopeSpec


def rope_spec(rope: Rope, rotated: int) -> RopeSpec:
    """The table of heads of which `rotated` dimensions turn."""
    scaling = {"llama3": "by_wavelength", "longrope": "default"}  # longrope is in the divisors
    return RopeSpec(
        rotated=rotated,
        theta=rope.theta,
        scaling=scaling.get(rope.scaling, rope.scaling),
        factor=rope.factor,
        low_freq_factor=rope.low_freq_factor,
        high_freq_factor=rope.high_freq_factor,
        original_context=rope.original_context,
        divisors=rope.divisors,
        long_divisors=rope.long_divisors,
        beta_fast=rope.beta_fast,
        beta_slow=rope.beta_slow,
        truncate=rope.truncate,
        attention_factor=rope.attention_factor,
    )
