"""gpt-oss [2508.10925]: sinks, alternating windows, YaRN, biased router, clamped experts."""

from __future__ import annotations

from dataclasses import dataclass

from zllm.model_spec import fields, llama, rope
from zllm.model_spec.fields import Fields
from zllm.model_spec.rope import Rope

MODEL_TYPES = ("gpt_oss", "gpt-oss")  # config.json: model_type; GGUF: general.architecture
ACTIVATIONS = ("silu",)
SLIDING, FULL = "sliding_attention", "full_attention"

# transformers, modeling_gpt_oss.py: constants there, absent from early configs.
ALPHA, LIMIT = 1.702, 7.0


@dataclass(frozen=True, slots=True)
class GptOssConfig:
    """Sizes and switches. Letters are those of shapes in the whole project."""

    vocabulary: int  # V
    width: int  # D
    heads: int  # H
    kv_heads: int  # G
    head_size: int  # K
    context: int  # max_position_embeddings
    norm_eps: float
    rope: Rope
    windows: tuple[int, ...]  # per layer; 0: the layer sees everything
    experts: int  # E
    chosen_experts: int  # per token
    expert_width: int  # F of one expert
    alpha: float = ALPHA  # of the activation
    limit: float = LIMIT  # clamps gate and up
    # Hugging Face's files alternate the experts' gate and up rows, GGUF stores them apart.
    interleaved: bool = True
    attention_bias: bool = True  # on q, k, v and o
    tied_embeddings: bool = False

    @property
    def layers(self) -> int:
        return len(self.windows)


def from_hf(config: Fields) -> GptOssConfig:
    """The spec of a `config.json`. ValueError names the field, got and expected."""
    heads = fields.size(config, "num_attention_heads")
    width = fields.size(config, "hidden_size")
    # Defaults here and below: transformers, GptOssConfig.
    context = fields.size(config, "max_position_embeddings", 131072)
    experts = fields.size(config, "num_local_experts")
    fields.choice(config, "hidden_act", ACTIVATIONS, "silu")
    rope.require_whole_heads(config)
    return GptOssConfig(
        vocabulary=fields.size(config, "vocab_size"),
        width=width,
        heads=heads,
        kv_heads=llama.kv_heads(config, "num_key_value_heads", heads),
        head_size=llama.head_size(config, "head_dim", width, heads),
        context=context,
        norm_eps=fields.positive(config, "rms_norm_eps", 1e-5),
        rope=rope.from_hf(config, context, theta=150000.0),
        windows=_windows(config, fields.size(config, "num_hidden_layers")),
        experts=experts,
        chosen_experts=fields.at_most(config, "num_experts_per_tok", experts),
        expert_width=fields.size(config, "intermediate_size"),
        alpha=fields.positive(config, "swiglu_alpha", ALPHA),
        limit=fields.positive(config, "swiglu_limit", LIMIT),
        attention_bias=fields.flag(config, "attention_bias", True),
        tied_embeddings=fields.flag(config, "tie_word_embeddings", False),
    )


def alternating(window: int, layers: int) -> tuple[int, ...]:
    """Every second layer slides, from the first on."""
    return tuple(0 if i % 2 else window for i in range(layers))


def _windows(config: Fields, layers: int) -> tuple[int, ...]:
    window = fields.size(config, "sliding_window", 128)
    types = config.get("layer_types")
    if types is None:
        return alternating(window, layers)
    known = isinstance(types, list) and all(kind in (SLIDING, FULL) for kind in types)
    if not known or len(types) != layers:
        raise ValueError(
            f"layer_types: got {types!r:.200}, expected one of {SLIDING} and {FULL} for each of"
            f" {layers} layers"
        )
    return tuple(window if kind == SLIDING else 0 for kind in types)
