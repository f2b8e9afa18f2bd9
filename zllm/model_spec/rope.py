"""Rotary embedding parameters as configs spell them; the maths is in zllm/rope.py."""

from __future__ import annotations

import math
from dataclasses import dataclass

from zllm.model_spec import fields
from zllm.model_spec.fields import Fields

KINDS = ("default", "linear", "dynamic", "llama3", "yarn", "longrope")


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary embedding [2104.09864] and its frequency scaling."""

    theta: float
    scaling: str = "default"  # default | linear | llama3 | yarn | longrope
    factor: float = 1.0
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0
    original_context: int = 0  # llama3, yarn, longrope
    # Divides the frequency of each pair: longrope's short factors, or llama3 scaling as GGUF stores
    # it (`rope_freqs.weight`).
    divisors: tuple[float, ...] = ()
    # GGUF permutes the rows of q and k of some models so that pairs are neighbours: (2j, 2j+1), not
    # (j, j + K/2).
    interleaved: bool = False
    long_divisors: tuple[float, ...] = ()  # longrope, of sequences beyond original_context
    beta_fast: float = 32.0  # yarn: turns within original_context, above which a pair is kept
    beta_slow: float = 1.0  # yarn: … below which a pair is stretched by the whole factor
    truncate: bool = True  # yarn: round the two to whole pairs
    attention_factor: float = 1.0  # multiplies cos and sin
    score_factor: float = 1.0  # yarn with mscale_all_dim: multiplies the scale of MLA's scores


def from_hf(config: Fields, context: int, *, theta: float = 10000.0) -> Rope:
    """Both spellings: `rope_parameters`, and the older `rope_theta` with `rope_scaling`.

    `theta` is the model's default; `context` its max_position_embeddings. ValueError names the
    field.
    """
    spec = fields.section(config, "rope_parameters") or fields.section(config, "rope_scaling")
    original = fields.size(config, "original_max_position_embeddings", context)
    if spec.get("original_max_position_embeddings") is None:
        spec = {**spec, "original_max_position_embeddings": original}
    return of_section(spec, context, theta=fields.positive(config, "rope_theta", theta))


def of_section(spec: Fields, context: int, *, theta: float) -> Rope:
    """One set of parameters, such as that of a layer type; `theta` is its default."""
    theta = fields.positive(spec, "rope_theta", theta)
    # Early checkpoints write `type`.
    kind_key = "type" if spec.get("rope_type") is None else "rope_type"
    kind = fields.choice(spec, kind_key, KINDS, "default")
    if kind == "linear":
        return Rope(theta, kind, fields.positive(spec, "factor"))
    if kind == "llama3":
        return _llama3(spec, theta, context)
    if kind == "yarn":
        return _yarn(spec, theta, context)
    if kind == "longrope":
        return _longrope(spec, theta, context)
    # dynamic [transformers, modeling_rope_utils.py] changes nothing up to the model's context.
    return Rope(theta)


def require_whole_heads(config: Fields) -> None:
    """ValueError if only a part of each head turns."""
    for spec in (config, fields.section(config, "rope_parameters")):
        if fields.positive(spec, "partial_rotary_factor", 1.0) != 1.0:
            got = spec["partial_rotary_factor"]
            raise ValueError(
                f"partial_rotary_factor: got {got}, this model rotates whole heads: expected 1.0"
            )


def _llama3(spec: Fields, theta: float, context: int) -> Rope:
    rope = Rope(
        theta,
        "llama3",
        fields.positive(spec, "factor"),
        fields.positive(spec, "low_freq_factor"),
        fields.positive(spec, "high_freq_factor"),
        fields.size(spec, "original_max_position_embeddings", context),
    )
    if rope.low_freq_factor >= rope.high_freq_factor:
        raise ValueError(
            f"high_freq_factor: got {rope.high_freq_factor}, expected more than low_freq_factor"
            f" {rope.low_freq_factor}"
        )
    return rope


def _yarn(spec: Fields, theta: float, context: int) -> Rope:
    """[2309.00071]; mscale and mscale_all_dim as [2405.04434] uses them."""
    original = fields.size(spec, "original_max_position_embeddings", context)
    factor = fields.positive(spec, "factor", context / original if context > original else None)
    mscale, all_dim = _number(spec, "mscale"), _number(spec, "mscale_all_dim")
    own = yarn_scale(factor, 1.0)
    if mscale and all_dim:
        own = yarn_scale(factor, mscale) / yarn_scale(factor, all_dim)
    return Rope(
        theta,
        "yarn",
        factor,
        original_context=original,
        beta_fast=fields.positive(spec, "beta_fast", 32.0),
        beta_slow=fields.positive(spec, "beta_slow", 1.0),
        truncate=fields.flag(spec, "truncate", True),
        attention_factor=fields.positive(spec, "attention_factor", own),
        score_factor=yarn_scale(factor, all_dim) ** 2 if all_dim else 1.0,
    )


def yarn_scale(factor: float, mscale: float) -> float:
    """0.1 · mscale · ln(factor) + 1 [2309.00071 §3.4]."""
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1


def _longrope(spec: Fields, theta: float, context: int) -> Rope:
    """[2402.13753]."""
    original = fields.size(spec, "original_max_position_embeddings", context)
    factor = fields.positive(spec, "factor", context / original)
    stretched = factor > 1 and original > 1
    own = math.sqrt(1 + math.log(factor) / math.log(original)) if stretched else 1.0
    short, long = _divisors(spec, "short_factor"), _divisors(spec, "long_factor")
    if len(short) != len(long):
        raise ValueError(
            f"long_factor: got {len(long)} numbers, expected {len(short)} as in short_factor"
        )
    return Rope(
        theta,
        "longrope",
        factor,
        original_context=original,
        divisors=short,
        long_divisors=long,
        attention_factor=fields.positive(spec, "attention_factor", own),
    )


def _divisors(spec: Fields, key: str) -> tuple[float, ...]:
    found = spec.get(key)
    if not isinstance(found, list) or not found:
        raise ValueError(f"{key}: got {found!r}, expected a number for each pair of dimensions")
    return tuple(fields.positive({key: divisor}, key) for divisor in found)


def _number(spec: Fields, key: str) -> float:
    """A number that may be 0, as it is if missing."""
    return fields.positive(spec, key) if spec.get(key) else 0.0
