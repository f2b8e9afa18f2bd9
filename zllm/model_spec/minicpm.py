"""MiniCPM [2404.06395]: llama whose embeddings, residual branches and final hidden are scaled."""

from __future__ import annotations

from dataclasses import dataclass

from zllm.model_spec import dense, fields, rope
from zllm.model_spec.dense import Defaults, DenseConfig
from zllm.model_spec.fields import Fields

MODEL_TYPES = ("minicpm",)  # config.json: model_type; GGUF: general.architecture
ACTIVATIONS = ("silu",)


@dataclass(frozen=True, slots=True)
class MiniCpmConfig(DenseConfig):
    embedding_scale: float = 1.0
    branch_scale: float = 1.0  # of what each sublayer adds to the residual stream
    head_scale: float = 1.0  # of the final hidden state
    activation: str = "silu"
    attention_bias: bool = False  # on q, k, v and o


def from_hf(config: Fields) -> MiniCpmConfig:
    """The spec of a `config.json`. ValueError names the field, got and expected."""
    fields.choice(config, "hidden_act", ACTIVATIONS, "silu")
    rope.require_whole_heads(config)
    # Defaults here and below: openbmb, configuration_minicpm.py.
    shared = dense.from_hf(config, Defaults(context=2048, tied_embeddings=True))
    return MiniCpmConfig(
        **dense.values(shared),
        embedding_scale=fields.positive(config, "scale_emb", 1.0),
        branch_scale=fields.positive(config, "scale_depth", 1.0) / shared.layers**0.5,
        head_scale=fields.positive(config, "dim_model_base", 1.0) / shared.width,
        attention_bias=fields.flag(config, "attention_bias", False),
    )
