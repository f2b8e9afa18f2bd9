"""Qwen2 and Qwen2.5 [2407.10671]: llama with biases on q, k and v; upper layers may slide."""

from __future__ import annotations

from dataclasses import dataclass

from zllm.model_spec import dense, fields, rope
from zllm.model_spec.dense import Defaults, DenseConfig
from zllm.model_spec.fields import Fields

MODEL_TYPES = ("qwen2",)  # config.json: model_type; GGUF: general.architecture
ACTIVATIONS = ("silu",)


@dataclass(frozen=True, slots=True)
class Qwen2Config(DenseConfig):
    windows: tuple[int, ...] = ()  # per layer; 0: it sees everything
    activation: str = "silu"


def from_hf(config: Fields) -> Qwen2Config:
    """The spec of a `config.json`. ValueError names the field, got and expected."""
    fields.choice(config, "hidden_act", ACTIVATIONS, "silu")
    rope.require_whole_heads(config)
    # Defaults here and below: transformers, Qwen2Config.
    shared = dense.from_hf(config, Defaults(context=32768))
    return Qwen2Config(
        **dense.values(shared), windows=dense.optional_windows(config, shared.layers)
    )
