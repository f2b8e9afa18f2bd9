"""Qwen3 with experts [2505.09388]: q/k norms, a softmax router, dense layers mixed in."""

from __future__ import annotations

from dataclasses import dataclass

from zllm.model_spec import fields, llama, rope
from zllm.model_spec.fields import Fields
from zllm.model_spec.rope import Rope

MODEL_TYPES = ("qwen3_moe", "qwen3moe")  # config.json: model_type; GGUF: general.architecture
ACTIVATIONS = ("silu",)


@dataclass(frozen=True, slots=True)
class Qwen3MoeConfig:
    """Sizes and switches. Letters are those of shapes in the whole project."""

    vocabulary: int  # V
    width: int  # D
    ffn_width: int  # F of dense layers
    heads: int  # H
    kv_heads: int  # G
    head_size: int  # K
    context: int  # max_position_embeddings
    norm_eps: float
    rope: Rope
    sparse: tuple[bool, ...]  # per layer: experts, not one feed-forward layer
    experts: int  # E
    chosen_experts: int  # per token
    expert_width: int  # F of one expert
    normalise: bool  # the chosen experts' weights sum to 1
    window: int = 0  # of every layer; 0: none
    activation: str = "silu"
    attention_bias: bool = False  # on q, k, v and o
    tied_embeddings: bool = False

    @property
    def layers(self) -> int:
        return len(self.sparse)


def from_hf(config: Fields) -> Qwen3MoeConfig:
    """The spec of a `config.json`. ValueError names the field, got and expected."""
    width = fields.size(config, "hidden_size")
    heads = fields.size(config, "num_attention_heads")
    # Defaults here and below: transformers, Qwen3MoeConfig.
    context = fields.size(config, "max_position_embeddings", 32768)
    experts = _experts(config)
    slides = fields.flag(config, "use_sliding_window", False)
    fields.choice(config, "hidden_act", ACTIVATIONS, "silu")
    rope.require_whole_heads(config)
    return Qwen3MoeConfig(
        vocabulary=fields.size(config, "vocab_size"),
        width=width,
        ffn_width=fields.size(config, "intermediate_size"),
        heads=heads,
        kv_heads=llama.kv_heads(config, "num_key_value_heads", heads),
        head_size=llama.head_size(config, "head_dim", width, heads),
        context=context,
        norm_eps=fields.positive(config, "rms_norm_eps", 1e-6),
        rope=rope.from_hf(config, context),
        sparse=_sparse(config, fields.size(config, "num_hidden_layers")),
        experts=experts,
        chosen_experts=fields.at_most(config, "num_experts_per_tok", experts),
        expert_width=fields.size(config, "moe_intermediate_size"),
        normalise=fields.flag(config, "norm_topk_prob", False),
        window=fields.size(config, "sliding_window", 4096) if slides else 0,
        attention_bias=fields.flag(config, "attention_bias", False),
        tied_embeddings=fields.flag(config, "tie_word_embeddings", False),
    )


def _experts(config: Fields) -> int:
    """`num_experts` in published configs, `num_local_experts` as transformers 5 writes it."""
    newer = "num_local_experts"
    return fields.size(config, "num_experts" if config.get(newer) is None else newer)


def _sparse(config: Fields, layers: int) -> tuple[bool, ...]:
    dense, step = config.get("mlp_only_layers") or [], config.get("decoder_sparse_step")
    if not isinstance(dense, list) or not all(type(i) is int and i >= 0 for i in dense):
        raise ValueError(f"mlp_only_layers: got {dense!r}, expected a list of layer numbers")
    step = 1 if step is None else fields.size(config, "decoder_sparse_step")
    return tuple(i not in dense and (i + 1) % step == 0 for i in range(layers))
