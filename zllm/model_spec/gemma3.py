"""Gemma 3 text models [2503.19786]: norms on both sides of each sublayer, most layers slide."""

from __future__ import annotations

from dataclasses import dataclass

from zllm.model_spec import dense, fields, rope
from zllm.model_spec.dense import Defaults, DenseConfig
from zllm.model_spec.fields import Fields
from zllm.model_spec.rope import Rope

# config.json: model_type, of a text model or of one with a vision tower; GGUF: general.architecture
MODEL_TYPES = ("gemma3_text", "gemma3")
ACTIVATIONS = ("gelu_pytorch_tanh",)

# transformers, Gemma3TextConfig; published configs leave most of it out.
DEFAULTS = {
    "vocab_size": 262208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131072,
}
THETA, LOCAL_THETA = 1e6, 1e4
WINDOW = 4096
LOCAL_ROPE = Rope(LOCAL_THETA)
PATTERN = 6  # every 6th layer sees everything


@dataclass(frozen=True, slots=True)
class Gemma3Config(DenseConfig):
    """`rope` is that of layers that see everything."""

    local_rope: Rope = LOCAL_ROPE  # of sliding layers
    windows: tuple[int, ...] = ()  # per layer; 0: it sees everything
    score_scale: float = 256**-0.5
    norm_offset: float = 1.0  # norms store w - 1; GGUF files store w
    logit_cap: float = 0.0  # c of c·tanh(z / c); 0: none
    activation: str = "gelu_tanh"
    attention_bias: bool = False  # on q, k, v and o


def from_hf(config: Fields) -> Gemma3Config:
    """The spec of a `config.json`, nested or not. ValueError names the field, got and expected."""
    given = {**config, **fields.section(config, "text_config")}
    config = {**DEFAULTS, **{key: value for key, value in given.items() if value is not None}}
    fields.choice(config, "hidden_activation", ACTIVATIONS, ACTIVATIONS[0])
    rope.require_whole_heads(config)
    if fields.flag(config, "use_bidirectional_attention", False):
        raise ValueError("use_bidirectional_attention: got true, supported: causal attention")
    full, local = _ropes(config, fields.size(config, "max_position_embeddings"))
    shared = dense.from_hf(config, Defaults(context=0, tied_embeddings=True, rope=full))
    return Gemma3Config(
        **dense.values(shared),
        local_rope=local,
        windows=_windows(config, shared.layers),
        score_scale=fields.positive(config, "query_pre_attn_scalar", 256.0) ** -0.5,
        logit_cap=fields.positive(config, "final_logit_softcapping")
        if config.get("final_logit_softcapping")
        else 0.0,
        attention_bias=fields.flag(config, "attention_bias", False),
    )


def _ropes(config: Fields, context: int) -> tuple[Rope, Rope]:
    """A section for each layer type, or the older fields, whose scaling is of full layers alone."""
    sections = fields.section(config, "rope_parameters")
    if set(sections) & set(dense.LAYER_TYPES):
        full, local = (fields.section(sections, kind) for kind in dense.LAYER_TYPES)
        return (
            rope.of_section(full, context, theta=THETA),
            rope.of_section(local, context, theta=LOCAL_THETA),
        )
    local_theta = fields.positive(config, "rope_local_base_freq", LOCAL_THETA)
    return rope.from_hf(config, context, theta=THETA), Rope(local_theta)


def _windows(config: Fields, layers: int) -> tuple[int, ...]:
    older, newer = "sliding_window_pattern", "_sliding_window_pattern"
    key = newer if config.get(older) is None else older
    return dense.windows(
        config,
        layers,
        fields.size(config, "sliding_window", WINDOW),
        pattern(layers, fields.size(config, key, PATTERN)),
    )


def pattern(layers: int, period: int) -> tuple[bool, ...]:
    """Which layers slide: all but every `period`-th."""
    return tuple((i + 1) % period != 0 for i in range(layers))
