"""What dense decoders have in common: sizes, rotary parameters, windows per layer."""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import fields as dataclass_fields
from typing import Any

from zllm.model_spec import fields, rope
from zllm.model_spec.fields import Fields
from zllm.model_spec.rope import Rope

LAYER_TYPES = ("full_attention", "sliding_attention")


@dataclass(frozen=True, slots=True)
class DenseConfig:
    """Sizes and switches. Letters are those of shapes in the whole project."""

    vocabulary: int  # V
    width: int  # D
    ffn_width: int  # F, feed-forward
    layers: int
    heads: int  # H
    kv_heads: int  # G
    head_size: int  # K
    context: int  # max_position_embeddings
    norm_eps: float
    rope: Rope
    tied_embeddings: bool = False


def values(config: DenseConfig) -> dict[str, Any]:
    """The fields by name, to build a config that has more of them."""
    return {field.name: getattr(config, field.name) for field in dataclass_fields(DenseConfig)}


@dataclass(frozen=True, slots=True)
class Defaults:
    """What a missing field means; it differs from model to model."""

    context: int
    tied_embeddings: bool = False
    theta: float = 10000.0
    head_size: int = 0  # 0: width / heads
    rope: Rope | None = None  # None: as the config's own fields say


def from_hf(config: Fields, defaults: Defaults) -> DenseConfig:
    """The fields that all have alike. ValueError names the field, got and expected."""
    width = fields.size(config, "hidden_size")
    heads = fields.size(config, "num_attention_heads")
    context = fields.size(config, "max_position_embeddings", defaults.context)
    head = defaults.head_size or None
    return DenseConfig(
        vocabulary=fields.size(config, "vocab_size"),
        width=width,
        ffn_width=fields.size(config, "intermediate_size"),
        layers=fields.size(config, "num_hidden_layers"),
        heads=heads,
        kv_heads=kv_heads(config, "num_key_value_heads", heads),
        head_size=head_size(config, "head_dim", width, heads, head),
        context=context,
        norm_eps=fields.positive(config, "rms_norm_eps", 1e-6),
        rope=defaults.rope or rope.from_hf(config, context, theta=defaults.theta),
        tied_embeddings=fields.flag(config, "tie_word_embeddings", defaults.tied_embeddings),
    )


def kv_heads(config: Fields, key: str, heads: int) -> int:
    """Key/value heads, as many as query heads if not given."""
    found = fields.size(config, key, heads)
    if heads % found:
        raise ValueError(f"{key}: got {found}, expected a divisor of {heads} query heads")
    return found


def head_size(config: Fields, key: str, width: int, heads: int, default: int | None = None) -> int:
    """Head size, width / heads if not given; even, since rotary embedding turns pairs."""
    if default is None and config.get(key) is None and width % heads:
        raise ValueError(f"{key}: missing, and width {width} is no multiple of {heads} heads")
    found = fields.size(config, key, default or max(1, width // heads))
    if found % 2:
        raise ValueError(f"{key}: got {found}, expected an even head size")
    return found


def windows(config: Fields, layers: int, window: int, sliding: tuple[bool, ...]) -> tuple[int, ...]:
    """The window of each layer, 0 for none: by `layer_types` if given, else where it is `sliding`.

    ValueError if `layer_types` does not name a known type for each layer.
    """
    types = config.get("layer_types")
    if types is not None:
        if not isinstance(types, list) or len(types) != layers:
            raise ValueError(f"layer_types: got {types!r}, expected one type for each of {layers}")
        kinds = [fields.choice({"layer_types": kind}, "layer_types", LAYER_TYPES) for kind in types]
        sliding = tuple(kind == "sliding_attention" for kind in kinds)
    return tuple(window if slides else 0 for slides in sliding)


def optional_windows(config: Fields, layers: int) -> tuple[int, ...]:
    """Windows that a switch turns on: then the layers from `max_window_layers` on slide."""
    slides = fields.flag(config, "use_sliding_window", False)
    window = fields.size(config, "sliding_window", 4096) if slides else 0
    first = fields.count(config, "max_window_layers", 28)  # transformers: Qwen2Config, Qwen3Config
    return windows(config, layers, window, tuple(i >= first for i in range(layers)))
