"""Qwen3 [2505.09388]: llama with normed queries and keys; upper layers may slide."""

from __future__ import annotations

from dataclasses import dataclass

from zllm.model_spec import dense, fields, rope
from zllm.model_spec.dense import Defaults, DenseConfig
from zllm.model_spec.fields import Fields

MODEL_TYPES = ("qwen3",)  # config.json: model_type; GGUF: general.architecture
ACTIVATIONS = ("silu",)


@dataclass(frozen=True, slots=True)
class Qwen3Config(DenseConfig):
    windows: tuple[int, ...] = ()  # per layer; 0: it sees everything
    activation: str = "silu"
    attention_bias: bool = False  # on q, k, v and o


def from_hf(config: Fields) -> Qwen3Config:
    """The spec of a `config.json`. ValueError names the field, got and expected."""
    fields.choice(config, "hidden_act", ACTIVATIONS, "silu")
    rope.require_whole_heads(config)
    # Defaults here and below: transformers, Qwen3Config.
    shared = dense.from_hf(config, Defaults(context=32768, head_size=128))
    return Qwen3Config(
        **dense.values(shared),
        windows=dense.optional_windows(config, shared.layers),
        attention_bias=fields.flag(config, "attention_bias", False),
    )
