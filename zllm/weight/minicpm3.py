"""MiniCPM3 checkpoints: the names of Hugging Face folders.

Canonical names: `embed`, `norm`, `head` (absent when tied to `embed`), and in each layer
`layers.{i}.` + `attn_norm`, those of `weight/latent.py`, `ffn_norm gate up down`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from zllm.model_spec import minicpm3
from zllm.model_spec.minicpm3 import Minicpm3Config
from zllm.weight import latent, names
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
    return spec, names.select(tensors, _expected(spec), skip=skip)


def _expected(spec: Minicpm3Config) -> Iterator[Expected]:
    table, vector = (spec.vocabulary, spec.width), (spec.width,)
    inner, outer = (spec.ffn_width, spec.width), (spec.width, spec.ffn_width)
    yield Expected("embed", "model.embed_tokens.weight", table)
    yield Expected("norm", "model.norm.weight", vector)
    if not spec.tied_embeddings:
        yield Expected("head", "lm_head.weight", table)
    for i in range(spec.layers):
        here, there = f"layers.{i}.", f"model.layers.{i}."
        yield Expected(f"{here}attn_norm", f"{there}input_layernorm.weight", vector)
        yield from latent.expected(
            here,
            f"{there}self_attn.",
            spec.latent,
            heads=spec.heads,
            width=spec.width,
            bias=spec.attention_bias,
        )
        yield Expected(f"{here}ffn_norm", f"{there}post_attention_layernorm.weight", vector)
        yield Expected(f"{here}gate", f"{there}mlp.gate_proj.weight", inner)
        yield Expected(f"{here}up", f"{there}mlp.up_proj.weight", inner)
        yield Expected(f"{here}down", f"{there}mlp.down_proj.weight", outer)
