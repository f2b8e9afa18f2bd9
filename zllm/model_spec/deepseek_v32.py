"""DeepSeek V3.2 [2512.02556]: DeepSeek V3 whose attention sees what an indexer chooses."""

from __future__ import annotations

from dataclasses import dataclass

from zllm.model_spec import deepseek_v3, latent
from zllm.model_spec.deepseek_v3 import DeepseekV3Config
from zllm.model_spec.fields import Fields
from zllm.model_spec.latent import Index

MODEL_TYPES = ("deepseek_v32",)


@dataclass(frozen=True, slots=True)
class DeepseekV32Config:
    base: DeepseekV3Config
    index: Index

    @property
    def vocabulary(self) -> int:
        return self.base.vocabulary

    @property
    def context(self) -> int:
        return self.base.context


def from_hf(config: Fields) -> DeepseekV32Config:
    """The spec of a `config.json`. ValueError names the field, got and expected."""
    base = deepseek_v3.from_hf(config)
    if not base.latent.query_rank:
        raise ValueError("q_lora_rank: missing; the indexer reads the query's latent")
    return DeepseekV32Config(base, latent.index_from_hf(config, base.latent.rotated))
