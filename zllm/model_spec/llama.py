"""Llama architecture [2302.13971]: SmolLM2, MiniCPM5 and all of `model_type: llama`."""

from __future__ import annotations

from dataclasses import dataclass

from zllm.model_spec import dense, fields, rope
from zllm.model_spec.dense import Defaults, DenseConfig
from zllm.model_spec.fields import Fields

MODEL_TYPES = ("llama",)  # config.json: model_type; GGUF: general.architecture
ACTIVATIONS = ("silu",)


@dataclass(frozen=True, slots=True)
class LlamaConfig(DenseConfig):
    activation: str = "silu"
    attention_bias: bool = False  # on q, k, v and o
    mlp_bias: bool = False


def from_hf(config: Fields) -> LlamaConfig:
    """The spec of a `config.json`. ValueError names the field, got and expected."""
    fields.choice(config, "hidden_act", ACTIVATIONS, "silu")
    rope.require_whole_heads(config)
    return LlamaConfig(
        # Defaults here and below: transformers, LlamaConfig.
        **dense.values(dense.from_hf(config, Defaults(context=2048))),
        attention_bias=fields.flag(config, "attention_bias", False),
        mlp_bias=fields.flag(config, "mlp_bias", False),
    )
