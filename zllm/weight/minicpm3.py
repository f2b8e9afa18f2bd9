"""MiniCPM3 checkpoints: the names of Hugging Face folders and of GGUF files.

Canonical names: `embed`, `norm`, `head` (absent when tied to `embed`), and in each layer
`layers.{i}.` + `attn_norm`, those of `weight/latent.py`, `ffn_norm gate up down`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from zllm.model_spec import fields, minicpm3
from zllm.model_spec.minicpm3 import Minicpm3Config
from zllm.weight import dense, gguf_fields, latent, latent_gguf, names
from zllm.weight.linear_weight import LinearWeight
from zllm.weight.names import Expected, Tensors

# Rotary frequencies follow from the config; early checkpoints stored them as buffers.
_SKIP = r"model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq"
# A tied checkpoint may still store the head: transformers ignores it too.
_TIED_SKIP = _SKIP + r"|lm_head\.weight"


def from_hf(
    config: Mapping[str, Any], tensors: Mapping[str, LinearWeight]
) -> tuple[Minicpm3Config, Tensors]:
    """The spec and canonical weights of a Hugging Face folder. ValueError: what does not fit."""
    spec = minicpm3.from_hf(config)
    skip = re.compile(_TIED_SKIP if spec.tied_embeddings else _SKIP)
    wanted = _expected(spec, dense.HF, "self_attn.", latent.HF)
    return spec, names.select(tensors, wanted, skip=skip)


def from_gguf(
    metadata: Mapping[str, Any], tensors: Mapping[str, LinearWeight]
) -> tuple[Minicpm3Config, Tensors]:
    """The spec and canonical weights of a GGUF file. ValueError: what does not fit."""
    spec = _config_from_gguf(metadata, tensors)
    wanted = _expected(spec, dense.GGUF, "", latent_gguf.parts(tensors))
    selected = names.select(tensors, wanted, skip=dense.GGUF_SKIP)
    return spec, latent_gguf.together(selected, spec.latent)


def _expected(
    spec: Minicpm3Config, scheme: dense.Scheme, attention: str, parts: Mapping[str, str]
) -> Iterator[Expected]:
    """`parts` of latent attention stand below the prefix `attention`."""
    table, vector = (spec.vocabulary, spec.width), (spec.width,)
    inner, outer = (spec.ffn_width, spec.width), (spec.width, spec.ffn_width)
    shapes = {"attn_norm": vector, "ffn_norm": vector, "gate": inner, "up": inner, "down": outer}
    yield Expected("embed", f"{scheme.embed}.weight", table)
    yield Expected("norm", f"{scheme.norm}.weight", vector)
    if not spec.tied_embeddings:
        yield Expected("head", f"{scheme.head}.weight", table)
    for i in range(spec.layers):
        here, there = f"layers.{i}.", scheme.layer.format(i)
        for name, shape in shapes.items():
            yield Expected(here + name, f"{there}{scheme.parts[name]}.weight", shape)
        yield from latent.expected(
            here,
            there + attention,
            spec.latent,
            heads=spec.heads,
            width=spec.width,
            bias=spec.attention_bias,
            parts=parts,
        )


def _config_from_gguf(
    metadata: Mapping[str, Any], tensors: Mapping[str, LinearWeight]
) -> Minicpm3Config:
    """Without keys for its scales, which llama.cpp knows by heart, those of the 4B model."""
    width = fields.size(metadata, "minicpm3.embedding_length")
    layers = fields.size(metadata, "minicpm3.block_count")
    heads = fields.size(metadata, "minicpm3.attention.head_count")
    context = fields.size(metadata, "minicpm3.context_length")
    sizes = latent_gguf.sizes(metadata, value=width // heads)
    return Minicpm3Config(
        vocabulary=gguf_fields.vocabulary(metadata, tensors),
        width=width,
        ffn_width=fields.size(metadata, "minicpm3.feed_forward_length"),
        layers=layers,
        heads=heads,
        context=context,
        norm_eps=fields.positive(metadata, "minicpm3.attention.layer_norm_rms_epsilon"),
        latent=sizes,
        rope=gguf_fields.rope(metadata, tensors, context, sizes.rotated // 2),
        embedding_scale=fields.positive(metadata, "minicpm3.embedding_scale", 12.0),
        branch_scale=fields.positive(metadata, "minicpm3.residual_scale", 1.4 / layers**0.5),
        logit_scale=1 / fields.positive(metadata, "minicpm3.logit_scale", width / 256),
        attention_bias="blk.0.attn_kv_a_mqa.bias" in tensors,
        tied_embeddings="output.weight" not in tensors,
    )
