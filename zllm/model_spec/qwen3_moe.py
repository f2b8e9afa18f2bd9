"""Qwen3 with experts [2505.09388]: q/k norms, a softmax router, dense layers mixed in."""

from __future__ import annotations

from dataclasses import dataclass

from zllm.model_spec import dense, fields, rope
from zllm.model_spec.dense import Defaults, DenseConfig
from zllm.model_spec.fields import Fields

MODEL_TYPES = ("qwen3_moe", "qwen3moe")  # config.json: model_type; GGUF: general.architecture
ACTIVATIONS = ("silu",)


@dataclass(frozen=True, slots=True)
class Qwen3MoeConfig(DenseConfig):
    sparse: tuple[bool, ...] = ()  # per layer: experts, not one feed-forward layer
    experts: int = 0  # E
    chosen_experts: int = 0  # per token
    expert_width: int = 0  # F of one expert
    normalise: bool = False  # the chosen experts' weights sum to 1
    window: int = 0  # of every layer; 0: none
    activation: str = "silu"
    attention_bias: bool = False  # on q, k, v and o


def from_hf(config: Fields) -> Qwen3MoeConfig:
    """The spec of a `config.json`. ValueError names the field, got and expected."""
    fields.choice(config, "hidden_act", ACTIVATIONS, "silu")
    rope.require_whole_heads(config)
    # Defaults here and below: transformers, Qwen3MoeConfig.
    common = dense.from_hf(config, Defaults(context=32768))
    experts = _experts(config)
    slides = fields.flag(config, "use_sliding_window", False)
    return Qwen3MoeConfig(
        **dense.values(common),
        sparse=_sparse(config, common.layers),
        experts=experts,
        chosen_experts=fields.at_most(config, "num_experts_per_tok", experts, min(8, experts)),
        expert_width=fields.size(config, "moe_intermediate_size"),
        normalise=fields.flag(config, "norm_topk_prob", False),
        window=fields.size(config, "sliding_window", 4096) if slides else 0,
        attention_bias=fields.flag(config, "attention_bias", False),
    )


def _experts(config: Fields) -> int:
    """`num_experts` in published configs, `num_local_experts` as transformers 5 writes it."""
    newer = "num_local_experts"
    return fields.size(config, "num_experts" if config.get(newer) is None else newer)


def _sparse(config: Fields, layers: int) -> tuple[bool, ...]:
    others = config.get("mlp_only_layers") or []
    if not isinstance(others, list) or not all(type(i) is int and i >= 0 for i in others):
        raise ValueError(f"mlp_only_layers: got {others!r}, expected a list of layer numbers")
    step = fields.size(config, "decoder_sparse_step", 1)
    return tuple(i not in others and (i + 1) % step == 0 for i in range(layers))
