"""DeepSeek V3.2 checkpoints: DeepSeek V3's names and each layer's indexer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from zllm.model_spec import deepseek_v32
from zllm.model_spec.deepseek_v32 import DeepseekV32Config
from zllm.weight import deepseek_v3, latent
from zllm.weight.linear_weight import LinearWeight
from zllm.weight.names import Expected, Tensors


def from_hf(
    config: Mapping[str, Any], tensors: Mapping[str, LinearWeight]
) -> tuple[DeepseekV32Config, Tensors]:
    """The spec and canonical weights of a Hugging Face folder. ValueError: what does not fit."""
    spec = deepseek_v32.from_hf(config)
    return spec, deepseek_v3.select(spec.base, tensors, _expected(spec))


def _expected(spec: DeepseekV32Config) -> Iterator[Expected]:
    base = spec.base
    yield from deepseek_v3.expected(base)
    for i in range(base.layers):
        yield from latent.expected_index(
            f"layers.{i}.",
            f"model.layers.{i}.self_attn.indexer.",
            spec.index,
            query_rank=base.latent.query_rank,
            width=base.width,
        )
