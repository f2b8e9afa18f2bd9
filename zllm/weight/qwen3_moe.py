"""Qwen3 with experts: the names of Hugging Face folders and of GGUF files, and GGUF's metadata.

Canonical names: `embed`, `norm`, `head` (absent when tied to `embed`), and in each layer
`layers.{i}.` + `attn_norm q k v q_norm k_norm o ffn_norm`; dense layers `gate up down`, sparse ones
`router` and `experts.{e}.` + `gate up down`. A bias appends `.bias`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from zllm.model_spec import qwen3_moe
from zllm.model_spec.qwen3_moe import Qwen3MoeConfig
from zllm.weight import experts, names
from zllm.weight.experts import ExpertNames, ExpertSizes
from zllm.weight.linear_weight import LinearWeight
from zllm.weight.names import Expected, Tensors

_NOTHING = re.compile(r"(?!)")
_TIED = re.compile(r"lm_head\.weight")  # a tied checkpoint may still store the head


def from_hf(
    config: Mapping[str, Any], tensors: Mapping[str, LinearWeight]
) -> tuple[Qwen3MoeConfig, Tensors]:
    """The spec and canonical weights of a Hugging Face folder. ValueError: what does not fit."""
    spec = qwen3_moe.from_hf(config)
    single = experts.per_expert(tensors, ExpertNames().fused, spec.experts)
    skip = _TIED if spec.tied_embeddings else _NOTHING
    return spec, names.select(single, _expected_hf(spec), skip=skip)


def _expected_hf(spec: Qwen3MoeConfig) -> Iterator[Expected]:
    """transformers, models/qwen3_moe/modeling_qwen3_moe.py."""
    d, table = spec.width, (spec.vocabulary, spec.width)
    yield Expected("embed", "model.embed_tokens.weight", table)
    yield Expected("norm", "model.norm.weight", (d,))
    if not spec.tied_embeddings:
        yield Expected("head", "lm_head.weight", table)
    for i in range(spec.layers):
        here, there = f"layers.{i}.", f"model.layers.{i}."
        yield Expected(f"{here}attn_norm", f"{there}input_layernorm.weight", (d,))
        yield Expected(f"{here}ffn_norm", f"{there}post_attention_layernorm.weight", (d,))
        for part, shape in _attention(spec).items():
            stored = f"{there}self_attn.{part}"
            if part.endswith("norm"):
                yield Expected(here + part, f"{stored}.weight", shape)
                continue
            yield Expected(here + part, f"{stored}_proj.weight", shape)
            if spec.attention_bias:
                yield Expected(f"{here}{part}.bias", f"{stored}_proj.bias", shape[:1])
        yield from _feed_forward_hf(spec, i, here, f"{there}mlp.")


def _feed_forward_hf(spec: Qwen3MoeConfig, layer: int, here: str, there: str) -> Iterator[Expected]:
    d, f = spec.width, spec.ffn_width
    if spec.sparse[layer]:
        sizes = ExpertSizes(spec.experts, d, spec.expert_width)
        yield Expected(f"{here}router", f"{there}gate.weight", (spec.experts, d))
        yield from experts.expected(here, there, sizes, ExpertNames())
        return
    yield Expected(f"{here}gate", f"{there}gate_proj.weight", (f, d))
    yield Expected(f"{here}up", f"{there}up_proj.weight", (f, d))
    yield Expected(f"{here}down", f"{there}down_proj.weight", (d, f))


def _attention(spec: Qwen3MoeConfig) -> dict[str, tuple[int, ...]]:
    d, size = spec.width, spec.head_size
    q, kv = spec.heads * size, spec.kv_heads * size
    return {
        "q": (q, d),
        "k": (kv, d),
        "v": (kv, d),
        "q_norm": (size,),
        "k_norm": (size,),
        "o": (d, q),
    }
