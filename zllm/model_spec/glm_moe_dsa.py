"""GLM-5 [2602.15763]: latent attention over what an indexer chooses, shared by layers."""

from __future__ import annotations

from dataclasses import dataclass

from zllm.model_spec import deepseek_v3, fields, latent
from zllm.model_spec.deepseek_v3 import DeepseekV3Config
from zllm.model_spec.fields import Fields
from zllm.model_spec.latent import Index

MODEL_TYPES = ("glm_moe_dsa",)


@dataclass(frozen=True, slots=True)
class GlmMoeDsaConfig:
    base: DeepseekV3Config
    index: Index
    index_interleaved: bool  # RoPE pairs of the indexer
    chooses: tuple[bool, ...]  # per layer: has an indexer, or takes the choice of the last that had

    @property
    def vocabulary(self) -> int:
        return self.base.vocabulary

    @property
    def context(self) -> int:
        return self.base.context


def from_hf(config: Fields) -> GlmMoeDsaConfig:
    """The spec of a `config.json`. ValueError names the field, got and expected."""
    base = deepseek_v3.from_hf(config)
    if not base.latent.query_rank:
        raise ValueError("q_lora_rank: missing; the indexer reads the query's latent")
    return GlmMoeDsaConfig(
        base=base,
        index=latent.index_from_hf(config, base.latent.rotated),
        index_interleaved=fields.flag(config, "indexer_rope_interleave", True),
        chooses=latent.choosing_layers(config, base.layers),
    )
