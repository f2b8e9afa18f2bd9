"""Llama architecture [2302.13971]: SmolLM2, MiniCPM5 and every checkpoint of `model_type: llama`."""

from __future__ import annotations

from dataclasses import dataclass

MODEL_TYPES = ("llama",)  # config.json: model_type; GGUF: general.architecture


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
    """Sizes and switches; D width, H query heads, G key/value heads, K head size, F FFN, V vocabulary."""

    vocabulary: int  # V
    width: int  # D
    ffn_width: int  # F
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
