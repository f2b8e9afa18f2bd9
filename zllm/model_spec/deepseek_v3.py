"""DeepSeek V3 [2412.19437], R1, Kimi K2: latent attention, experts behind a sigmoid router."""

from __future__ import annotations

from dataclasses import dataclass

from zllm.model_spec import fields, grouped_experts, latent, rope
from zllm.model_spec.fields import Fields
from zllm.model_spec.grouped_experts import GroupedExperts
from zllm.model_spec.latent import Latent
from zllm.model_spec.rope import Rope

# config.json: model_type; the last is GGUF's general.architecture.
MODEL_TYPES = ("deepseek_v3", "kimi_k2", "deepseek2")
ACTIVATIONS = ("silu",)


@dataclass(frozen=True, slots=True)
class DeepseekV3Config:
    vocabulary: int  # V
    width: int  # D
    ffn_width: int  # F of dense layers
    layers: int
    heads: int  # H
    context: int
    norm_eps: float
    latent: Latent
    rope: Rope
    rope_interleaved: bool  # pairs are (2j, 2j+1), not (j, j + r/2)
    experts: GroupedExperts
    sparse: tuple[bool, ...]  # per layer: experts, or one feed-forward layer
    attention_bias: bool  # on what goes down to the latents, and on the output
    tied_embeddings: bool


def from_hf(config: Fields) -> DeepseekV3Config:
    """The spec of a `config.json`. ValueError names the field, got and expected."""
    fields.choice(config, "hidden_act", ACTIVATIONS, "silu")
    if fields.size(config, "moe_layer_freq", 1) != 1:
        raise ValueError(f"moe_layer_freq: got {config['moe_layer_freq']}, expected 1")
    layers = fields.size(config, "num_hidden_layers")
    # Defaults here and below: transformers, DeepseekV3Config.
    context = fields.size(config, "max_position_embeddings", 4096)
    return DeepseekV3Config(
        vocabulary=fields.size(config, "vocab_size"),
        width=fields.size(config, "hidden_size"),
        ffn_width=fields.size(config, "intermediate_size"),
        layers=layers,
        heads=fields.size(config, "num_attention_heads"),
        context=context,
        norm_eps=fields.positive(config, "rms_norm_eps", 1e-6),
        latent=latent.from_hf(config),
        rope=rope.from_hf(config, context),
        rope_interleaved=fields.flag(config, "rope_interleave", True),
        experts=grouped_experts.from_hf(config),
        sparse=grouped_experts.sparse_layers(config, layers),
        attention_bias=fields.flag(config, "attention_bias", False),
        tied_embeddings=fields.flag(config, "tie_word_embeddings", False),
    )
