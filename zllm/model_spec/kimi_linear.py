"""Kimi Linear [2510.26692]: KDA layers, every few a latent attention without position, experts."""

from __future__ import annotations

from dataclasses import dataclass

from zllm.model_spec import fields, grouped_experts, latent, linear_attention
from zllm.model_spec.fields import Fields
from zllm.model_spec.grouped_experts import GroupedExperts
from zllm.model_spec.latent import Latent
from zllm.model_spec.linear_attention import LinearAttention

MODEL_TYPES = ("kimi_linear",)
ACTIVATIONS = ("silu",)


@dataclass(frozen=True, slots=True)
class KimiLinearConfig:
    vocabulary: int  # V
    width: int  # D
    ffn_width: int  # F of dense layers
    heads: int  # H of latent attention
    context: int
    norm_eps: float
    latent: Latent
    linear: LinearAttention
    experts: GroupedExperts
    is_linear: tuple[bool, ...]  # per layer: KDA, or latent attention
    sparse: tuple[bool, ...]  # per layer: experts, or one feed-forward layer
    tied_embeddings: bool

    @property
    def layers(self) -> int:
        return len(self.is_linear)


def from_hf(config: Fields) -> KimiLinearConfig:
    """The spec of a `config.json`. ValueError names the field, got and expected."""
    fields.choice(config, "hidden_act", ACTIVATIONS, "silu")
    if not fields.flag(config, "mla_use_nope", True):
        raise ValueError("mla_use_nope: got false, expected true: no part is rotated")
    layers = fields.size(config, "num_hidden_layers")
    return KimiLinearConfig(
        vocabulary=fields.size(config, "vocab_size"),
        width=fields.size(config, "hidden_size"),
        ffn_width=fields.size(config, "intermediate_size"),
        heads=fields.size(config, "num_attention_heads"),
        context=_context(config),
        # Defaults here and below: configuration_kimi.py of the published checkpoint.
        norm_eps=fields.positive(config, "rms_norm_eps", 1e-6),
        latent=latent.from_hf(config),
        linear=linear_attention.from_hf(config),
        experts=_experts(config),
        is_linear=linear_attention.linear_layers(config, layers, ("full_attention",)),
        sparse=_sparse(config, layers),
        tied_embeddings=fields.flag(config, "tie_word_embeddings", False),
    )


def _context(config: Fields) -> int:
    newer = "max_position_embeddings"
    return fields.size(config, "model_max_length" if config.get(newer) is None else newer, 4096)


def _experts(config: Fields) -> GroupedExperts:
    fields.choice(config, "moe_router_activation_func", ("sigmoid",), "sigmoid")
    width = fields.size(config, "moe_intermediate_size")
    found = GroupedExperts(
        experts=fields.size(config, "num_experts"),
        chosen=fields.size(config, "num_experts_per_token"),
        width=width,
        shared_width=width * fields.count(config, "num_shared_experts", 0),
        groups=fields.size(config, "num_expert_group", 1),
        kept_groups=fields.size(config, "topk_group", 1),
        normalise=fields.flag(config, "moe_renormalize", True),
        scale=fields.positive(config, "routed_scaling_factor", 1.0),
    )
    grouped_experts.check(found)
    return found


def _sparse(config: Fields, layers: int) -> tuple[bool, ...]:
    sparse = grouped_experts.sparse_layers(config, layers)
    if config.get("mlp_layer_types") is not None:
        return sparse
    every = fields.size(config, "moe_layer_freq", 1)
    return tuple(kind and i % every == 0 for i, kind in enumerate(sparse))
