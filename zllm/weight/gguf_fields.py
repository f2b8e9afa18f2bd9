"""GGUF metadata that dense decoders have alike: ggml docs/gguf.md, "Attention" and "RoPE"."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from zllm.errors import LoadError
from zllm.model_spec import dense, fields
from zllm.model_spec.dense import DenseConfig
from zllm.model_spec.rope import Rope, yarn_scale
from zllm.quant.formats import FORMATS, decode
from zllm.weight.linear_weight import LinearWeight, OneTensor, format_of

SCALINGS = ("none", "linear", "yarn", "longrope")

Tensors = Mapping[str, LinearWeight]


def config(metadata: Mapping[str, Any], tensors: Tensors, *, interleaved: bool) -> DenseConfig:
    """The sizes and rotary parameters. ValueError names the key, got and expected.

    `interleaved`: llama.cpp's converter permutes the rows of this model's q and k.
    """
    arch = metadata["general.architecture"]
    width = fields.size(metadata, f"{arch}.embedding_length")
    heads = fields.size(metadata, f"{arch}.attention.head_count")
    head_size = dense.head_size(metadata, f"{arch}.attention.key_length", width, heads)
    for key in (f"{arch}.attention.value_length", f"{arch}.rope.dimension_count"):
        if fields.size(metadata, key, head_size) != head_size:
            raise ValueError(f"{key}: got {metadata[key]}, expected the head size {head_size}")
    context = fields.size(metadata, f"{arch}.context_length")
    rotary = rope(metadata, tensors, context, head_size // 2)
    return DenseConfig(
        vocabulary=vocabulary(metadata, tensors),
        width=width,
        ffn_width=fields.size(metadata, f"{arch}.feed_forward_length"),
        layers=fields.size(metadata, f"{arch}.block_count"),
        heads=heads,
        kv_heads=dense.kv_heads(metadata, f"{arch}.attention.head_count_kv", heads),
        head_size=head_size,
        context=context,
        norm_eps=fields.positive(metadata, f"{arch}.attention.layer_norm_rms_epsilon"),
        rope=replace(rotary, interleaved=interleaved),
        tied_embeddings="output.weight" not in tensors,
    )


def vocabulary(metadata: Mapping[str, Any], tensors: Tensors) -> int:
    """`vocab_size` came late to the format; without it the embedding's rows say it."""
    embed = tensors.get("token_embd.weight")
    rows = embed.shape[0] if embed is not None and embed.shape else None
    return fields.size(metadata, f"{metadata['general.architecture']}.vocab_size", rows)


def rope(
    metadata: Mapping[str, Any],
    tensors: Tensors,
    context: int,
    pairs: int,
    *,
    theta: float = 10000.0,  # gguf.md, RoPE
) -> Rope:
    """Rotary parameters of heads in which `pairs` of dimensions turn."""
    key = f"{metadata['general.architecture']}.rope"
    theta = fields.positive(metadata, f"{key}.freq_base", theta)
    kind = fields.choice(metadata, f"{key}.scaling.type", SCALINGS, "none")
    long, short = (tensors.get(f"rope_factors_{which}.weight") for which in ("long", "short"))
    original = fields.size(metadata, f"{key}.scaling.original_context_length", context)
    if long is not None and short is not None:  # llama.cpp writes no scaling type for some models
        return Rope(
            theta,
            "longrope",
            original_context=original,
            divisors=_divisors(short, "rope_factors_short.weight", pairs),
            long_divisors=_divisors(long, "rope_factors_long.weight", pairs),
            attention_factor=fields.positive(metadata, f"{key}.scaling.attn_factor", 1.0),
        )
    if kind == "longrope":
        raise LoadError("tensors 'rope_factors_long.weight' and '…_short.weight' are missing")
    stored = tensors.get("rope_freqs.weight")
    divisors = () if stored is None else _divisors(stored, "rope_freqs.weight", pairs)
    if kind == "none":
        return Rope(theta, divisors=divisors)
    factor = fields.positive(metadata, f"{key}.scaling.factor")
    if kind == "linear":
        return Rope(theta, kind, factor, divisors=divisors)
    return Rope(
        theta,
        kind,
        factor,
        original_context=original,
        divisors=divisors,
        beta_fast=fields.positive(metadata, f"{key}.scaling.yarn_beta_fast", 32.0),
        beta_slow=fields.positive(metadata, f"{key}.scaling.yarn_beta_slow", 1.0),
        attention_factor=yarn_scale(factor, 1.0)
        * fields.positive(metadata, f"{key}.scaling.attn_factor", 1.0),
    )


def _divisors(weight: LinearWeight, name: str, pairs: int) -> tuple[float, ...]:
    format = format_of(weight)
    if weight.shape != (pairs,) or format not in FORMATS or not isinstance(weight, OneTensor):
        raise LoadError(f"tensor {name!r}: {format} {list(weight.shape)}, expected f32 [{pairs}]")
    return tuple(decode(format, weight.data.read(), pairs)[0].tolist())
