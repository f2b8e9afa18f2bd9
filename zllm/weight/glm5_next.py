"""GLM-5.3-Flash checkpoints: the names of Hugging Face folders.

Canonical names: `embed`, `norm`, `head` (absent when tied to `embed`), and in each layer
`layers.{i}.` + `attn_hc.fn …base …scale`, `attn_norm`, those of `weight/linear_attention.py` or
`weight/latent.py`, `ffn_hc.fn …base …scale`, `ffn_norm`, and `gate up down` or `router
router.correction experts.{e}.gate …up …down shared.gate …up …down`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from zllm.model_spec import glm5_next
from zllm.model_spec.glm5_next import Glm5NextConfig
from zllm.weight import experts, grouped_experts, latent, linear_attention, names
from zllm.weight.experts import ExpertNames
from zllm.weight.linear_weight import LinearWeight
from zllm.weight.names import Expected, Tensors

# The language model's tensors beside a vision tower, and by themselves.
_BESIDE, _ALONE = "model.language_model.", "model."
_VISION = r"(model\.)?visual\..*"
_TIED = r"lm_head\.weight"  # a tied checkpoint may still store the head
_EXTRA_LAYER = re.compile(r"(.*layers\.(\d+)\.)eh_proj\.weight")


def from_hf(
    config: Mapping[str, Any], tensors: Mapping[str, LinearWeight]
) -> tuple[Glm5NextConfig, Tensors]:
    """The spec and canonical weights of a Hugging Face folder. ValueError: what does not fit.

    A vision tower is skipped, and so are layers for multi-token prediction behind the model's own.
    """
    spec = glm5_next.from_hf(config)
    usual, other = (_BESIDE, _ALONE) if config.get("text_config") else (_ALONE, _BESIDE)
    prefix = other if f"{other}embed_tokens.weight" in tensors else usual
    one_by_one = experts.per_expert(tensors, ExpertNames().fused, spec.experts.experts)
    expected = _Expected(spec, prefix).all()
    stored = linear_attention.one_spelling(one_by_one, (spec.linear.heads,))
    selected = names.select(stored, expected, skip=_skipped(spec, tensors))
    return spec, linear_attention.without_axes_of_one(selected)


def _skipped(spec: Glm5NextConfig, tensors: Mapping[str, LinearWeight]) -> re.Pattern[str]:
    skip = [_VISION, *([_TIED] if spec.tied_embeddings else [])]
    for name in tensors:
        extra = _EXTRA_LAYER.fullmatch(name)
        if extra and int(extra[2]) >= spec.layers:
            skip.append(re.escape(extra[1]) + ".*")
    return re.compile("|".join(skip))


@dataclass(frozen=True, slots=True)
class _Expected:
    spec: Glm5NextConfig
    prefix: str

    def all(self) -> Iterator[Expected]:
        spec, vector = self.spec, (self.spec.width,)
        table = (spec.vocabulary, spec.width)
        yield Expected("embed", f"{self.prefix}embed_tokens.weight", table)
        yield Expected("norm", f"{self.prefix}norm.weight", vector)
        if not spec.tied_embeddings:
            yield Expected("head", "lm_head.weight", table)
        for i in range(spec.layers):
            here, there = f"layers.{i}.", f"{self.prefix}layers.{i}."
            yield from self._mix(f"{here}attn_hc.", f"{there}hc_attn_")
            yield Expected(f"{here}attn_norm", f"{there}input_layernorm.weight", vector)
            yield from self._attention(i, here, f"{there}self_attn.")
            yield from self._mix(f"{here}ffn_hc.", f"{there}hc_ffn_")
            yield Expected(f"{here}ffn_norm", f"{there}post_attention_layernorm.weight", vector)
            yield from self._ffn(i, here, f"{there}mlp.")

    def _mix(self, here: str, there: str) -> Iterator[Expected]:
        n = self.spec.hyper.streams
        yield Expected(f"{here}fn", f"{there}fn", ((2 + n) * n, n * self.spec.width))
        yield Expected(f"{here}base", f"{there}base", ((2 + n) * n,))
        yield Expected(f"{here}scale", f"{there}scale", (3,))

    def _attention(self, layer: int, here: str, there: str) -> Iterator[Expected]:
        spec, d = self.spec, self.spec.width
        if spec.is_linear[layer]:
            rate = (spec.linear.heads,)
            yield from linear_attention.expected(here, there, d, spec.linear, rate)
            return
        yield from latent.expected(
            here, there, spec.latent, heads=spec.heads, width=d, bias=spec.attention_bias
        )
        if not spec.chooses[layer]:
            return
        there, rank, size = f"{there}indexer.", spec.latent.query_rank, spec.index.size
        yield from latent.expected_index(here, there, spec.index, query_rank=rank, width=d)
        if spec.pools.size > 1:
            pooling = f"{there}index_kpool_compress_"
            yield Expected(f"{here}index.gate", f"{pooling}gate", (size, d))
            yield Expected(f"{here}index.ape", f"{pooling}ape", (spec.pools.size, size))

    def _ffn(self, layer: int, here: str, there: str) -> Iterator[Expected]:
        spec, d = self.spec, self.spec.width
        if spec.sparse[layer]:
            return grouped_experts.expected(here, there, spec.experts, d, ExpertNames())
        return grouped_experts.gated(here, there, d, spec.ffn_width)
