"""Sizes of KDA layers [2510.26692], and which layers of a stack they are."""

from __future__ import annotations

from dataclasses import dataclass

from zllm.model_spec import fields
from zllm.model_spec.fields import Fields

LINEAR = "linear_attention"


@dataclass(frozen=True, slots=True)
class LinearAttention:
    heads: int  # H
    head_size: int  # d, of keys and values
    kernel: int  # taps of the short convolution
    lower_bound: float = 0.0  # of the log decay of a step; 0: none, the softplus gate


def from_hf(config: Fields) -> LinearAttention:
    """Both spellings: `linear_…` fields, or a section `linear_attn_config`. ValueError: which."""
    old = fields.section(config, "linear_attn_config")
    new = config
    if config.get("linear_num_heads") is None:
        new = {
            "linear_num_heads": old.get("num_heads"),
            "linear_head_dim": old.get("head_dim"),
            "linear_conv_kernel_dim": old.get("short_conv_kernel_size"),
        }
    bound = config.get("linear_lower_bound", old.get("gate_lower_bound"))
    if not fields.flag(old, "safe_gate", True):
        bound = None
    if bound is not None and (type(bound) not in (int, float) or not -1e4 < bound < 0):
        raise ValueError(f"linear_lower_bound: got {bound!r}, expected a negative number or null")
    kernel = fields.size(new, "linear_conv_kernel_dim")
    if kernel < 2:
        raise ValueError(f"linear_conv_kernel_dim: got {kernel}, expected at least 2 taps")
    return LinearAttention(
        heads=fields.size(new, "linear_num_heads"),
        head_size=fields.size(new, "linear_head_dim"),
        kernel=kernel,
        lower_bound=float(bound or 0),
    )


def linear_layers(config: Fields, layers: int, others: tuple[str, ...]) -> tuple[bool, ...]:
    """Which layers are KDA: `layer_types`, else the two lists of `linear_attn_config`.

    others: what `layer_types` calls the rest. Lists count from 1, or from 0 if they say 0.
    """
    types = config.get("layer_types")
    if types is None:
        return _listed_layers(fields.section(config, "linear_attn_config"), layers)
    known = (LINEAR, *others)
    if not isinstance(types, list) or len(types) != layers or not set(types) <= set(known):
        wanted = " or ".join(known)
        raise ValueError(f"layer_types: got {types!r}, expected {wanted} {layers} times")
    return tuple(kind == LINEAR for kind in types)


def _listed_layers(section: Fields, layers: int) -> tuple[bool, ...]:
    linear, full = (_numbers(section, key) for key in ("kda_layers", "full_attn_layers"))
    first = min(linear | full, default=1)
    stack = set(range(first, first + layers))
    if linear & full or not stack <= linear | full or first not in (0, 1):
        raise ValueError(
            f"linear_attn_config: got kda_layers {sorted(linear)} and full_attn_layers"
            f" {sorted(full)}, expected each of {layers} layers once"
        )
    return tuple(i in linear for i in sorted(stack))


def _numbers(section: Fields, key: str) -> set[int]:
    found = section.get(key)
    if not isinstance(found, list) or not all(type(number) is int for number in found):
        raise ValueError(f"linear_attn_config.{key}: got {found!r}, expected layer numbers")
    return set(found)
