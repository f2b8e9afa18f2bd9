"""Kimi Linear checkpoints: the names of Hugging Face folders.

Canonical names: `embed`, `norm`, `head` (absent when tied to `embed`), and in each layer
`layers.{i}.` + `attn_norm`, those of `weight/linear_attention.py` or `weight/latent.py`,
`ffn_norm`, and `gate up down` or `router router.correction experts.{e}.gate …up …down
shared.gate …up …down`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from zllm.model_spec import kimi_linear
from zllm.model_spec.kimi_linear import KimiLinearConfig
from zllm.weight import experts, grouped_experts, latent, linear_attention, names
from zllm.weight.experts import ExpertNames
from zllm.weight.linear_weight import LinearWeight
from zllm.weight.names import Expected, Tensors

# modeling_kimi.py of the published checkpoint
_EXPERTS = ExpertNames("w1", "w3", "w2")
_NOTHING = re.compile(r"(?!)")
_TIED = re.compile(r"lm_head\.weight")  # a tied checkpoint may still store the head


def from_hf(
    config: Mapping[str, Any], tensors: Mapping[str, LinearWeight]
) -> tuple[KimiLinearConfig, Tensors]:
    """The spec and canonical weights of a Hugging Face folder. ValueError: what does not fit."""
    spec = kimi_linear.from_hf(config)
    one_by_one = experts.per_expert(tensors, _EXPERTS.fused, spec.experts.experts)
    skip = _TIED if spec.tied_embeddings else _NOTHING
    stored = linear_attention.one_spelling(one_by_one, _rate(spec))
    selected = names.select(stored, _expected(spec), skip=skip)
    return spec, linear_attention.without_axes_of_one(selected)


def _expected(spec: KimiLinearConfig) -> Iterator[Expected]:
    table, vector = (spec.vocabulary, spec.width), (spec.width,)
    yield Expected("embed", "model.embed_tokens.weight", table)
    yield Expected("norm", "model.norm.weight", vector)
    if not spec.tied_embeddings:
        yield Expected("head", "lm_head.weight", table)
    for i in range(spec.layers):
        here, there = f"layers.{i}.", f"model.layers.{i}."
        yield Expected(f"{here}attn_norm", f"{there}input_layernorm.weight", vector)
        yield from _attention(spec, i, here, f"{there}self_attn.")
        yield Expected(f"{here}ffn_norm", f"{there}post_attention_layernorm.weight", vector)
        if spec.sparse[i]:
            moe = f"{there}block_sparse_moe."
            yield from grouped_experts.expected(here, moe, spec.experts, spec.width, _EXPERTS)
        else:
            yield from grouped_experts.gated(here, f"{there}mlp.", spec.width, spec.ffn_width)


def _rate(spec: KimiLinearConfig) -> tuple[int, ...]:
    """The shape of `A_log`."""
    return (1, 1, spec.linear.heads, 1)


def _attention(spec: KimiLinearConfig, layer: int, here: str, there: str) -> Iterator[Expected]:
    if spec.is_linear[layer]:
        return linear_attention.expected(here, there, spec.width, spec.linear, _rate(spec))
    return latent.expected(here, there, spec.latent, heads=spec.heads, width=spec.width, bias=False)
