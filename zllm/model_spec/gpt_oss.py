"""gpt-oss [2508.10925]: sinks, alternating windows, YaRN, biased router, clamped experts."""

from __future__ import annotations

from dataclasses import dataclass

from zllm.model_spec import dense, fields, rope
from zllm.model_spec.dense import Defaults, DenseConfig
from zllm.model_spec.fields import Fields

MODEL_TYPES = ("gpt_oss", "gpt-oss")  # config.json: model_type; GGUF: general.architecture
ACTIVATIONS = ("silu",)

# transformers, modeling_gpt_oss.py: constants there, absent from early configs.
ALPHA, LIMIT = 1.702, 7.0


@dataclass(frozen=True, slots=True)
class GptOssConfig(DenseConfig):
    """`ffn_width` is that of one expert."""

    windows: tuple[int, ...] = ()  # per layer; 0: the layer sees everything
    experts: int = 0  # E
    chosen_experts: int = 0  # per token
    alpha: float = ALPHA  # of the activation
    limit: float = LIMIT  # clamps gate and up
    # Hugging Face's files alternate the experts' gate and up rows, GGUF stores them apart.
    interleaved: bool = True
    attention_bias: bool = True  # on q, k, v and o


def from_hf(config: Fields) -> GptOssConfig:
    """The spec of a `config.json`. ValueError names the field, got and expected."""
    fields.choice(config, "hidden_act", ACTIVATIONS, "silu")
    rope.require_whole_heads(config)
    # Defaults here and below: transformers, GptOssConfig.
    defaults = Defaults(context=131072, theta=150000.0, head_size=64)
    common = dense.from_hf(config, defaults)
    experts = fields.size(config, "num_local_experts")
    window = fields.size(config, "sliding_window", 128)
    sliding = tuple(bool(size) for size in alternating(window, common.layers))
    return GptOssConfig(
        **dense.values(common),
        windows=dense.windows(config, common.layers, window, sliding),
        experts=experts,
        chosen_experts=fields.at_most(config, "num_experts_per_tok", experts, min(4, experts)),
        alpha=fields.positive(config, "swiglu_alpha", ALPHA),
        limit=fields.positive(config, "swiglu_limit", LIMIT),
        attention_bias=fields.flag(config, "attention_bias", True),
    )


def alternating(window: int, layers: int) -> tuple[int, ...]:
    """Every second layer slides, from the first on."""
    return tuple(0 if i % 2 else window for i in range(layers))
