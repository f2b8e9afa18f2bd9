"""Llama architecture [2302.13971]: SmolLM2, MiniCPM5 and all of `model_type: llama`."""

from __future__ import annotations

from dataclasses import dataclass

from zllm.model_spec import fields, rope
from zllm.model_spec.fields import Fields
from zllm.model_spec.rope import Rope

MODEL_TYPES = ("llama",)  # config.json: model_type; GGUF: general.architecture
ACTIVATIONS = ("silu",)


@dataclass(frozen=True, slots=True)
class LlamaConfig:
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
    activation: str = "silu"
    attention_bias: bool = False  # on q, k, v and o
    mlp_bias: bool = False
    tied_embeddings: bool = False


def from_hf(config: Fields) -> LlamaConfig:
    """The spec of a `config.json`. ValueError names the field, got and expected."""
    width = fields.size(config, "hidden_size")
    heads = fields.size(config, "num_attention_heads")
    # Defaults here and below: transformers, LlamaConfig.
    context = fields.size(config, "max_position_embeddings", 2048)
    fields.choice(config, "hidden_act", ACTIVATIONS, "silu")
    rope.require_whole_heads(config)
    return LlamaConfig(
        vocabulary=fields.size(config, "vocab_size"),
        width=width,
        ffn_width=fields.size(config, "intermediate_size"),
        layers=fields.size(config, "num_hidden_layers"),
        heads=heads,
        kv_heads=kv_heads(config, "num_key_value_heads", heads),
        head_size=head_size(config, "head_dim", width, heads),
        context=context,
        norm_eps=fields.positive(config, "rms_norm_eps", 1e-6),
        rope=rope.from_hf(config, context),
        attention_bias=fields.flag(config, "attention_bias", False),
        mlp_bias=fields.flag(config, "mlp_bias", False),
        tied_embeddings=fields.flag(config, "tie_word_embeddings", False),
    )


def kv_heads(config: Fields, key: str, heads: int) -> int:
    """Key/value heads, as many as query heads if not given."""
    found = fields.size(config, key, heads)
    if heads % found:
        raise ValueError(f"{key}: got {found}, expected a divisor of {heads} query heads")
    return found


def head_size(config: Fields, key: str, width: int, heads: int) -> int:
    """Head size, width / heads if not given; even, since rotary embedding turns pairs."""
    if config.get(key) is None and width % heads:
        raise ValueError(f"{key}: missing, and width {width} is no multiple of {heads} heads")
    found = fields.size(config, key, max(1, width // heads))
    if found % 2:
        raise ValueError(f"{key}: got {found}, expected an even head size")
    return found
