"""Llama architecture [2302.13971]: SmolLM2, MiniCPM5 and all of `model_type: llama`."""

from __future__ import annotations

from dataclasses import dataclass

from zllm.model_spec import fields
from zllm.model_spec.fields import Fields

MODEL_TYPES = ("llama",)  # config.json: model_type; GGUF: general.architecture
ACTIVATIONS = ("silu",)


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary embedding parameters [2104.09864]; the maths is in zllm/rope.py."""

    theta: float
    scaling: str = "default"  # default | linear | llama3
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 0
    # llama3 scaling as GGUF stores it (`rope_freqs.weight`): divides the frequency of each pair.
    divisors: tuple[float, ...] = ()
    # GGUF permutes the rows of q and k so that pairs are neighbours: (2j, 2j+1), not (j, j + K/2).
    interleaved: bool = False


@dataclass(frozen=True, slots=True)
class LlamaConfig:
    """Sizes and switches. Letters are those of shapes in the whole project."""

    vocabulary: int  # V
    width: int  # D
    ffn_width: int  # F, feed-forward
    layers: int
    heads: int  # H
    kv_heads: int  # G
    head_size: int  # K
    context: int  # max_position_embeddings
    norm_eps: float
    rope: Rope
    activation: str = "silu"
    attention_bias: bool = False  # on q, k, v and o
    mlp_bias: bool = False
    tied_embeddings: bool = False


def from_hf(config: Fields) -> LlamaConfig:
    """The spec of a `config.json`. ValueError names the field, got and expected."""
    width = fields.size(config, "hidden_size")
    heads = fields.size(config, "num_attention_heads")
    fields.choice(config, "hidden_act", ACTIVATIONS, "silu")
    return LlamaConfig(
        vocabulary=fields.size(config, "vocab_size"),
        width=width,
        ffn_width=fields.size(config, "intermediate_size"),
        layers=fields.size(config, "num_hidden_layers"),
        heads=heads,
        kv_heads=kv_heads(config, "num_key_value_heads", heads),
        head_size=head_size(config, "head_dim", width, heads),
        # Defaults here and below: transformers, LlamaConfig.
        context=fields.size(config, "max_position_embeddings", 2048),
        norm_eps=fields.positive(config, "rms_norm_eps", 1e-6),
        rope=_rope_from_hf(config),
        attention_bias=fields.flag(config, "attention_bias", False),
        mlp_bias=fields.flag(config, "mlp_bias", False),
        tied_embeddings=fields.flag(config, "tie_word_embeddings", False),
    )


def kv_heads(config: Fields, key: str, heads: int) -> int:
    """Key/value heads, as many as query heads if not given."""
    found = fields.size(config, key, heads)
    if heads % found:
        raise ValueError(f"{key}: got {found}, expected a divisor of {heads} query heads")
    return found


def head_size(config: Fields, key: str, width: int, heads: int) -> int:
    """Head size, width / heads if not given; even, since rotary embedding turns pairs."""
    if config.get(key) is None and width % heads:
        raise ValueError(f"{key}: missing, and width {width} is no multiple of {heads} heads")
    found = fields.size(config, key, max(1, width // heads))
    if found % 2:
        raise ValueError(f"{key}: got {found}, expected an even head size")
    return found


def _rope_from_hf(config: Fields) -> Rope:
    """Both spellings: `rope_parameters`, and the older `rope_theta` with `rope_scaling`."""
    if fields.positive(config, "partial_rotary_factor", 1.0) != 1.0:
        raise ValueError("partial_rotary_factor: llama rotates whole heads, expected 1.0")
    spec = fields.section(config, "rope_parameters") or fields.section(config, "rope_scaling")
    theta = fields.positive(spec, "rope_theta", fields.positive(config, "rope_theta", 10000.0))
    # Early checkpoints write `type`.
    kind_key = "type" if spec.get("rope_type") is None else "rope_type"
    kind = fields.choice(spec, kind_key, ("default", "linear", "llama3"), "default")
    if kind == "default":
        return Rope(theta)
    if kind == "linear":
        return Rope(theta, kind, fields.positive(spec, "factor"))
    return _llama3_rope(spec, theta)


def _llama3_rope(spec: Fields, theta: float) -> Rope:
    rope = Rope(
        theta,
        "llama3",
        fields.positive(spec, "factor"),
        fields.positive(spec, "low_freq_factor"),
        fields.positive(spec, "high_freq_factor"),
        fields.size(spec, "original_max_position_embeddings"),
    )
    if rope.low_freq_factor >= rope.high_freq_factor:
        raise ValueError(
            f"high_freq_factor: got {rope.high_freq_factor}, expected more than low_freq_factor"
            f" {rope.low_freq_factor}"
        )
    return rope
