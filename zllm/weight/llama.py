"""Llama checkpoints: the names of Hugging Face folders and of GGUF files, and GGUF's metadata.

Canonical names: `embed`, `norm`, `head` (absent when tied to `embed`), and in each layer
`layers.{i}.` + `attn_norm q k v o ffn_norm gate up down`; a bias appends `.bias`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from zllm.errors import LoadError
from zllm.model_spec import fields, llama
from zllm.model_spec.llama import LlamaConfig
from zllm.model_spec.rope import Rope
from zllm.quant.formats import FORMATS, decode
from zllm.weight import names
from zllm.weight.linear_weight import LinearWeight, format_of
from zllm.weight.names import Expected, Tensors


@dataclass(frozen=True, slots=True)
class _Scheme:
    """How a container names things; a layer's parts are in the order of `_PARTS`."""

    embed: str
    norm: str
    head: str
    layer: str
    parts: tuple[str, ...]


_PARTS = ("attn_norm", "q", "k", "v", "o", "ffn_norm", "gate", "up", "down")
# transformers, models/llama/modeling_llama.py
_HF = _Scheme(
    "model.embed_tokens",
    "model.norm",
    "lm_head",
    "model.layers.{}.",
    (
        "input_layernorm",
        "self_attn.q_proj",
        "self_attn.k_proj",
        "self_attn.v_proj",
        "self_attn.o_proj",
        "post_attention_layernorm",
        "mlp.gate_proj",
        "mlp.up_proj",
        "mlp.down_proj",
    ),
)
# ggml, docs/gguf.md: standardized tensor names
_GGUF = _Scheme(
    "token_embd",
    "output_norm",
    "output",
    "blk.{}.",
    (
        "attn_norm",
        "attn_q",
        "attn_k",
        "attn_v",
        "attn_output",
        "ffn_norm",
        "ffn_gate",
        "ffn_up",
        "ffn_down",
    ),
)
# Rotary frequencies follow from the config; early checkpoints stored them as buffers.
_HF_SKIP = re.compile(r"model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq")
# A tied checkpoint may still store the head: transformers ignores it too.
_HF_TIED_SKIP = re.compile(_HF_SKIP.pattern + r"|lm_head\.weight")
# rope_freqs goes into the config (Rope.divisors); attn_rot_embd is the old spelling of inv_freq.
_GGUF_SKIP = re.compile(r"rope_freqs\.weight|blk\.\d+\.attn_rot_embd\.weight")


def from_hf(
    config: Mapping[str, Any], tensors: Mapping[str, LinearWeight]
) -> tuple[LlamaConfig, Tensors]:
    """The spec and canonical weights of a Hugging Face folder. ValueError: what does not fit."""
    spec = llama.from_hf(config)
    skip = _HF_TIED_SKIP if spec.tied_embeddings else _HF_SKIP
    return spec, names.select(tensors, _expected(spec, _HF), skip=skip)


def from_gguf(
    metadata: Mapping[str, Any], tensors: Mapping[str, LinearWeight]
) -> tuple[LlamaConfig, Tensors]:
    """The spec and canonical weights of a GGUF file. ValueError: what does not fit.

    llama.cpp's converter permutes the rows of q and k so that rotary pairs are neighbours. They
    stay so and `Rope.interleaved` says it: scores are sums over a head, in whatever order.
    """
    spec = _config_from_gguf(metadata, tensors)
    return spec, names.select(tensors, _expected(spec, _GGUF), skip=_GGUF_SKIP)


def _expected(spec: LlamaConfig, scheme: _Scheme) -> Iterator[Expected]:
    table = (spec.vocabulary, spec.width)
    yield Expected("embed", f"{scheme.embed}.weight", table)
    yield Expected("norm", f"{scheme.norm}.weight", (spec.width,))
    if not spec.tied_embeddings:
        yield Expected("head", f"{scheme.head}.weight", table)
    shapes = _layer_shapes(spec)
    for layer in range(spec.layers):
        for part, stored in zip(_PARTS, scheme.parts, strict=True):
            name, stored_name = f"layers.{layer}.{part}", scheme.layer.format(layer) + stored
            yield Expected(name, f"{stored_name}.weight", shapes[part])
            if _has_bias(spec, part):
                yield Expected(f"{name}.bias", f"{stored_name}.bias", shapes[part][:1])


def _layer_shapes(spec: LlamaConfig) -> dict[str, tuple[int, ...]]:
    d, f = spec.width, spec.ffn_width
    q, kv = spec.heads * spec.head_size, spec.kv_heads * spec.head_size
    return {
        "attn_norm": (d,),
        "q": (q, d),
        "k": (kv, d),
        "v": (kv, d),
        "o": (d, q),
        "ffn_norm": (d,),
        "gate": (f, d),
        "up": (f, d),
        "down": (d, f),
    }


def _has_bias(spec: LlamaConfig, part: str) -> bool:
    if part in ("q", "k", "v", "o"):
        return spec.attention_bias
    return spec.mlp_bias and part in ("gate", "up", "down")


def _config_from_gguf(
    metadata: Mapping[str, Any], tensors: Mapping[str, LinearWeight]
) -> LlamaConfig:
    """Keys: ggml docs/gguf.md, section "Attention" and "RoPE"."""
    width = fields.size(metadata, "llama.embedding_length")
    heads = fields.size(metadata, "llama.attention.head_count")
    head_size = llama.head_size(metadata, "llama.attention.key_length", width, heads)
    for key in ("llama.attention.value_length", "llama.rope.dimension_count"):
        if fields.size(metadata, key, head_size) != head_size:
            raise ValueError(f"{key}: got {metadata[key]}, expected the head size {head_size}")
    return LlamaConfig(
        vocabulary=_vocabulary(metadata, tensors),
        width=width,
        ffn_width=fields.size(metadata, "llama.feed_forward_length"),
        layers=fields.size(metadata, "llama.block_count"),
        heads=heads,
        kv_heads=llama.kv_heads(metadata, "llama.attention.head_count_kv", heads),
        head_size=head_size,
        context=fields.size(metadata, "llama.context_length"),
        norm_eps=fields.positive(metadata, "llama.attention.layer_norm_rms_epsilon"),
        rope=_rope_from_gguf(metadata, tensors, head_size),
        attention_bias="blk.0.attn_q.bias" in tensors,
        mlp_bias="blk.0.ffn_gate.bias" in tensors,
        tied_embeddings="output.weight" not in tensors,
    )


def _vocabulary(metadata: Mapping[str, Any], tensors: Mapping[str, LinearWeight]) -> int:
    """`llama.vocab_size` came late to the format; without it the embedding's rows say it."""
    embed = tensors.get("token_embd.weight")
    rows = embed.shape[0] if embed is not None and embed.shape else None
    return fields.size(metadata, "llama.vocab_size", rows)


def _rope_from_gguf(
    metadata: Mapping[str, Any], tensors: Mapping[str, LinearWeight], head_size: int
) -> Rope:
    theta = fields.positive(metadata, "llama.rope.freq_base", 10000.0)  # gguf.md, RoPE
    kind = fields.choice(metadata, "llama.rope.scaling.type", ("none", "linear"), "none")
    divisors = _rope_divisors(tensors.get("rope_freqs.weight"), head_size)
    if kind == "none":
        return Rope(theta, divisors=divisors, interleaved=True)
    factor = fields.positive(metadata, "llama.rope.scaling.factor")
    return Rope(theta, "linear", factor, divisors=divisors, interleaved=True)


def _rope_divisors(weight: LinearWeight | None, head_size: int) -> tuple[float, ...]:
    if weight is None:
        return ()
    format, pairs = format_of(weight), head_size // 2
    if weight.shape != (pairs,) or format not in FORMATS:
        raise LoadError(
            f"tensor 'rope_freqs.weight': {format} {list(weight.shape)}, expected f32 [{pairs}]"
        )
    return tuple(decode(format, weight.data.read(), pairs)[0].tolist())
