"""DeepSeek V3 checkpoints: the names of Hugging Face folders.

Canonical names: `embed`, `norm`, `head` (absent when tied to `embed`), and in each layer
`layers.{i}.` + `attn_norm`, those of `weight/latent.py`, `ffn_norm`, and `gate up down` or
`router router.correction experts.{e}.gate …up …down shared.gate …up …down`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from zllm.model_spec import deepseek_v3
from zllm.model_spec.deepseek_v3 import DeepseekV3Config
from zllm.weight import experts, latent, names
from zllm.weight.experts import ExpertNames, ExpertSizes
from zllm.weight.linear_weight import LinearWeight
from zllm.weight.names import Expected, Tensors

# Rotary frequencies follow from the config.
_SKIP = r"model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq"
# A tied checkpoint may still store the head: transformers ignores it too.
_TIED_SKIP = r"lm_head\.weight"
_EXTRA_LAYER = re.compile(r"model\.layers\.(\d+)\.eh_proj\.weight")


def from_hf(
    config: Mapping[str, Any], tensors: Mapping[str, LinearWeight]
) -> tuple[DeepseekV3Config, Tensors]:
    """The spec and canonical weights of a Hugging Face folder. ValueError: what does not fit."""
    spec = deepseek_v3.from_hf(config)
    return spec, select(spec, tensors, expected(spec))


def select(
    spec: DeepseekV3Config, tensors: Mapping[str, LinearWeight], wanted: Iterator[Expected]
) -> Tensors:
    """The wanted tensors; layers for multi-token prediction behind the model's own are skipped."""
    extra = {
        found[1]
        for found in map(_EXTRA_LAYER.fullmatch, tensors)
        if found and int(found[1]) >= spec.layers
    }
    skip = [_SKIP, *([_TIED_SKIP] if spec.tied_embeddings else [])]
    skip += [rf"model\.layers\.{layer}\..*" for layer in extra]
    one_by_one = experts.per_expert(tensors, ExpertNames().fused, spec.experts.experts)
    return names.select(one_by_one, wanted, skip=re.compile("|".join(skip)))


def expected(spec: DeepseekV3Config) -> Iterator[Expected]:
    """Every tensor of the model, in its order."""
    table, vector = (spec.vocabulary, spec.width), (spec.width,)
    yield Expected("embed", "model.embed_tokens.weight", table)
    yield Expected("norm", "model.norm.weight", vector)
    if not spec.tied_embeddings:
        yield Expected("head", "lm_head.weight", table)
    for i, sparse in enumerate(spec.sparse):
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
        if sparse:
            yield from _expected_experts(spec, here, f"{there}mlp.")
        else:
            yield from gated(here, f"{there}mlp.", spec.width, spec.ffn_width)


def _expected_experts(spec: DeepseekV3Config, here: str, there: str) -> Iterator[Expected]:
    e = spec.experts
    yield Expected(f"{here}router", f"{there}gate.weight", (e.experts, spec.width))
    correction = f"{there}gate.e_score_correction_bias"
    yield Expected(f"{here}router.correction", correction, (e.experts,))
    sizes = ExpertSizes(e.experts, spec.width, e.width)
    yield from experts.expected(here, there, sizes, ExpertNames())
    if e.shared_width:
        shared = f"{there}shared_experts."
        yield from gated(f"{here}shared.", shared, spec.width, e.shared_width)


def gated(here: str, there: str, width: int, ffn_width: int) -> Iterator[Expected]:
    """A gated feed-forward layer; the prefixes end in a dot."""
    yield Expected(f"{here}gate", f"{there}gate_proj.weight", (ffn_width, width))
    yield Expected(f"{here}up", f"{there}up_proj.weight", (ffn_width, width))
    yield Expected(f"{here}down", f"{there}down_proj.weight", (width, ffn_width))
