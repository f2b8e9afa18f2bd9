"""MiniCPM3 [2404.06395; attention 2405.04434]: MiniCPM's scalings around latent attention."""

from __future__ import annotations

import math
from dataclasses import dataclass

from zllm.model_spec import fields, latent, rope
from zllm.model_spec.fields import Fields
from zllm.model_spec.latent import Latent
from zllm.model_spec.rope import Rope

MODEL_TYPES = ("minicpm3",)
ACTIVATIONS = ("silu",)


@dataclass(frozen=True, slots=True)
class Minicpm3Config:
    vocabulary: int  # V
    width: int  # D
    ffn_width: int  # F
    layers: int
    heads: int  # H
    context: int
    norm_eps: float
    latent: Latent
    rope: Rope
    embedding_scale: float
    branch_scale: float  # of what a sublayer adds to the residual stream
    logit_scale: float
    attention_bias: bool  # on what goes down to the latents, and on the output
    tied_embeddings: bool


def from_hf(config: Fields) -> Minicpm3Config:
    """The spec of a `config.json`. ValueError names the field, got and expected."""
    fields.choice(config, "hidden_act", ACTIVATIONS, "silu")
    if fields.flag(config, "mlp_bias", False):
        raise ValueError("mlp_bias: got true, this model's feed-forward layers have none")
    width, layers = fields.size(config, "hidden_size"), fields.size(config, "num_hidden_layers")
    heads = fields.size(config, "num_attention_heads")
    # Defaults here and below: transformers, MiniCPM3Config.
    context = fields.size(config, "max_position_embeddings", 32768)
    return Minicpm3Config(
        vocabulary=fields.size(config, "vocab_size"),
        width=width,
        ffn_width=fields.size(config, "intermediate_size"),
        layers=layers,
        heads=heads,
        context=context,
        norm_eps=fields.positive(config, "rms_norm_eps", 1e-5),
        latent=latent.from_hf(config, value=width // heads),
        rope=rope.from_hf(config, context),
        embedding_scale=fields.positive(config, "scale_emb"),
        branch_scale=_scale(config, "scale_depth", layers**0.5) / math.sqrt(layers),
        logit_scale=_scale(config, "dim_model_base", width) / width,
        attention_bias=fields.flag(config, "attention_bias", False),
        tied_embeddings=fields.flag(config, "tie_word_embeddings", True),
    )


def _scale(config: Fields, key: str, neutral: float) -> float:
    """null stands for the value that changes nothing; a config without the field is refused."""
    return neutral if config.get(key, 0) is None else fields.positive(config, key)
