"""GLM-5.3-Flash: hyper-connections around KDA, and latent attention over pools of keys; experts."""

from __future__ import annotations

from dataclasses import dataclass

from zllm.model_spec import fields, grouped_experts, latent, linear_attention
from zllm.model_spec.fields import Fields
from zllm.model_spec.grouped_experts import GroupedExperts
from zllm.model_spec.latent import Index, Latent
from zllm.model_spec.linear_attention import LinearAttention

MODEL_TYPES = ("glm5_next", "glm5_next_text")
ACTIVATIONS = ("silu",)
# The second is what published configs write.
SPARSE_ATTENTION = ("indexed_attention", "deepseek_sparse_attention")


@dataclass(frozen=True, slots=True)
class HyperConnection:
    streams: int  # N
    eps: float
    iterations: int  # of Sinkhorn


@dataclass(frozen=True, slots=True)
class Pools:
    size: int  # P, tokens whose keys are scored together
    tail: bool  # a row also sees the tokens that are in no complete pool yet


@dataclass(frozen=True, slots=True)
class Glm5NextConfig:
    vocabulary: int  # V
    width: int  # D
    ffn_width: int  # F of dense layers
    heads: int  # H of latent attention
    context: int
    norm_eps: float
    hyper: HyperConnection
    latent: Latent
    index: Index
    pools: Pools
    linear: LinearAttention
    experts: GroupedExperts
    is_linear: tuple[bool, ...]  # per layer: KDA, or latent attention
    chooses: tuple[bool, ...]  # per layer: has an indexer, or takes the latest choice
    sparse: tuple[bool, ...]  # per layer: experts, or one feed-forward layer
    clamp: float  # of gates and what they multiply; 0: none
    attention_bias: bool  # on what goes down to the latents, and on the output
    tied_embeddings: bool

    @property
    def layers(self) -> int:
        return len(self.is_linear)


def from_hf(config: Fields) -> Glm5NextConfig:
    """The spec of a `config.json`, flat or with a `text_config`. ValueError names the field."""
    c = text_config(config)
    fields.choice(c, "hidden_act", ACTIVATIONS, "silu")
    layers = fields.size(c, "num_hidden_layers")
    is_linear = linear_attention.linear_layers(c, layers, SPARSE_ATTENTION)
    return Glm5NextConfig(
        vocabulary=fields.size(c, "vocab_size"),
        width=fields.size(c, "hidden_size"),
        ffn_width=fields.size(c, "intermediate_size"),
        heads=fields.size(c, "num_attention_heads"),
        # Defaults here and below: transformers, Glm5NextTextConfig.
        context=fields.size(c, "max_position_embeddings", 4096),
        norm_eps=fields.positive(c, "rms_norm_eps", 1e-5),
        hyper=HyperConnection(
            streams=fields.size(c, "hc_mult"),
            eps=fields.positive(c, "hc_eps", 1e-6),
            iterations=fields.size(c, "hc_sinkhorn_iters", 20),
        ),
        latent=_latent(c),
        index=latent.index_from_hf(c, 0),
        pools=_pools(c),
        linear=linear_attention.from_hf(c),
        experts=grouped_experts.from_hf(c),
        is_linear=is_linear,
        chooses=_chooses(c, is_linear),
        sparse=grouped_experts.sparse_layers(c, layers),
        clamp=0.0 if c.get("swiglu_limit") is None else fields.positive(c, "swiglu_limit"),
        attention_bias=fields.flag(c, "attention_bias", False),
        tied_embeddings=fields.flag(c, "tie_word_embeddings", False),
    )


def text_config(config: Fields) -> Fields:
    """The language model's fields: those of `text_config` if there is one, else all."""
    text = fields.section(config, "text_config")
    if not text:
        return config
    tied = config.get("tie_word_embeddings")
    return text if tied is None else {"tie_word_embeddings": tied, **text}


def _latent(config: Fields) -> Latent:
    found = latent.from_hf({"qk_rope_head_dim": 0, **config})
    if found.rotated:
        raise ValueError(f"qk_rope_head_dim: got {found.rotated}, expected 0: nothing is rotated")
    if not found.query_rank:
        raise ValueError("q_lora_rank: missing; the indexer reads the query's latent")
    return found


def _pools(config: Fields) -> Pools:
    size = fields.size(config, "index_kpool")
    top_k = fields.size(config, "index_topk")
    if size > top_k:
        raise ValueError(f"index_kpool: got {size}, expected at most index_topk {top_k}")
    return Pools(size, fields.flag(config, "index_kpool_always_select_tail", True))


def _chooses(config: Fields, is_linear: tuple[bool, ...]) -> tuple[bool, ...]:
    first = next((i for i, linear in enumerate(is_linear) if not linear), 0)
    own = latent.choosing_layers(config, len(is_linear), first=first)
    return tuple(o and not linear for o, linear in zip(own, is_linear, strict=True))
