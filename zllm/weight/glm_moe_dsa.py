"""GLM-5 checkpoints: DeepSeek V3's names, and an indexer in the layers that choose."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from zllm.model_spec import glm_moe_dsa
from zllm.model_spec.glm_moe_dsa import GlmMoeDsaConfig
from zllm.weight import deepseek_v3, latent
from zllm.weight.linear_weight import LinearWeight
from zllm.weight.names import Expected, Tensors


def from_hf(
    config: Mapping[str, Any], tensors: Mapping[str, LinearWeight]
) -> tuple[GlmMoeDsaConfig, Tensors]:
    """The spec and canonical weights of a Hugging Face folder. ValueError: what does not fit."""
    spec = glm_moe_dsa.from_hf(config)
    return spec, deepseek_v3.select(spec.base, tensors, _expected(spec))


def _expected(spec: GlmMoeDsaConfig) -> Iterator[Expected]:
    base = spec.base
    yield from deepseek_v3.expected(base)
    for i, chooses in enumerate(spec.chooses):
        if chooses:
            yield from latent.expected_index(
                f"layers.{i}.",
                f"model.layers.{i}.self_attn.indexer.",
                spec.index,
                query_rank=base.latent.query_rank,
                width=base.width,
            )
