"""DeepSeek V4 checkpoints: the names of Hugging Face folders, which have no common prefix.

Canonical names: `embed`, `norm`, `head` (absent when tied to `embed`), `head_hc.fn …base …scale`,
and in each layer `layers.{i}.` + `attn_hc.fn …base …scale`, `attn_norm`, `q_a q_norm q_b kv kv_norm
sinks o_a o_b`, with entries `compress.kv …gate …ape …norm`, with an indexer `index.q …weights …kv
…gate …ape …norm`, `ffn_hc.fn …base …scale`, `ffn_norm`, `router`, `router.correction` or
`router.table`, `experts.{e}.gate …up …down`, `shared.gate …up …down`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from zllm.model_spec import deepseek_v4
from zllm.model_spec.deepseek_v4 import Compression, DeepseekV4Config
from zllm.weight import experts, names
from zllm.weight.experts import ExpertNames, ExpertSizes
from zllm.weight.linear_weight import LinearWeight
from zllm.weight.names import Expected, Tensors

_NAMES = ExpertNames("w1", "w3", "w2")
_PREDICTION = r"mtp\..*"  # multi-token prediction
_TIED = r"head\.weight"  # a tied checkpoint may still store the head


def from_hf(
    config: Mapping[str, Any], tensors: Mapping[str, LinearWeight]
) -> tuple[DeepseekV4Config, Tensors]:
    """The spec and canonical weights of a Hugging Face folder. ValueError: what does not fit."""
    spec = deepseek_v4.from_hf(config)
    skip = re.compile("|".join([_PREDICTION, *([_TIED] if spec.tied_embeddings else [])]))
    one_by_one = experts.per_expert(tensors, _NAMES.fused, spec.experts.experts)
    return spec, names.select(one_by_one, _Expected(spec).all(), skip=skip)


@dataclass(frozen=True, slots=True)
class _Expected:
    spec: DeepseekV4Config

    def all(self) -> Iterator[Expected]:
        spec, vector = self.spec, (self.spec.width,)
        table = (spec.vocabulary, spec.width)
        yield Expected("embed", "embed.weight", table)
        yield Expected("norm", "norm.weight", vector)
        if not spec.tied_embeddings:
            yield Expected("head", "head.weight", table)
        yield from self._mix("head_hc.", "hc_head_", spec.hyper.streams, 1)
        for i, compression in enumerate(spec.compression):
            at = f"layers.{i}."
            gates = (2 + spec.hyper.streams) * spec.hyper.streams
            yield from self._mix(f"{at}attn_hc.", f"{at}hc_attn_", gates, 3)
            yield Expected(f"{at}attn_norm", f"{at}attn_norm.weight", vector)
            yield from self._attention(at, f"{at}attn.", compression)
            yield from self._mix(f"{at}ffn_hc.", f"{at}hc_ffn_", gates, 3)
            yield Expected(f"{at}ffn_norm", f"{at}ffn_norm.weight", vector)
            yield from self._ffn(at, f"{at}ffn.", by_token=spec.experts.by_token[i])

    def _mix(self, here: str, there: str, gates: int, scales: int) -> Iterator[Expected]:
        columns = self.spec.hyper.streams * self.spec.width
        yield Expected(f"{here}fn", f"{there}fn", (gates, columns))
        yield Expected(f"{here}base", f"{there}base", (gates,))
        yield Expected(f"{here}scale", f"{there}scale", (scales,))

    def _attention(
        self, here: str, there: str, compression: Compression | None
    ) -> Iterator[Expected]:
        c, d = self.spec, self.spec.width
        q, groups = c.heads * c.head_size, c.output_groups
        yield Expected(f"{here}q_a", f"{there}wq_a.weight", (c.query_rank, d))
        yield Expected(f"{here}q_norm", f"{there}q_norm.weight", (c.query_rank,))
        yield Expected(f"{here}q_b", f"{there}wq_b.weight", (q, c.query_rank))
        yield Expected(f"{here}kv", f"{there}wkv.weight", (c.head_size, d))
        yield Expected(f"{here}kv_norm", f"{there}kv_norm.weight", (c.head_size,))
        yield Expected(f"{here}sinks", f"{there}attn_sink", (c.heads,))
        yield Expected(f"{here}o_a", f"{there}wo_a.weight", (groups * c.output_rank, q // groups))
        yield Expected(f"{here}o_b", f"{there}wo_b.weight", (d, groups * c.output_rank))
        if compression is None:
            return
        yield from self._compressor(
            f"{here}compress.", f"{there}compressor.", c.head_size, compression
        )
        if compression.chosen:
            here, there, index = f"{here}index.", f"{there}indexer.", c.index
            rows = index.heads * index.size
            yield Expected(f"{here}q", f"{there}wq_b.weight", (rows, c.query_rank))
            yield Expected(f"{here}weights", f"{there}weights_proj.weight", (index.heads, d))
            yield from self._compressor(here, f"{there}compressor.", index.size, compression)

    def _compressor(
        self, here: str, there: str, size: int, compression: Compression
    ) -> Iterator[Expected]:
        width = 2 * size if compression.chosen else size
        yield Expected(f"{here}kv", f"{there}wkv.weight", (width, self.spec.width))
        yield Expected(f"{here}gate", f"{there}wgate.weight", (width, self.spec.width))
        yield Expected(f"{here}ape", f"{there}ape", (compression.rate, width))
        yield Expected(f"{here}norm", f"{there}norm.weight", (size,))

    def _ffn(self, here: str, there: str, *, by_token: bool) -> Iterator[Expected]:
        spec, e, d = self.spec, self.spec.experts, self.spec.width
        yield Expected(f"{here}router", f"{there}gate.weight", (e.experts, d))
        if by_token:
            table = (spec.vocabulary, e.chosen)
            yield Expected(f"{here}router.table", f"{there}gate.tid2eid", table)
        else:
            yield Expected(f"{here}router.correction", f"{there}gate.bias", (e.experts,))
        yield from experts.expected(here, there, ExpertSizes(e.experts, d, e.width), _NAMES)
        if e.shared_width:
            f = e.shared_width
            shared = {"gate": ("w1", (f, d)), "up": ("w3", (f, d)), "down": ("w2", (d, f))}
            for part, (stored, shape) in shared.items():
                name = f"{there}shared_experts.{stored}.weight"
                yield Expected(f"{here}shared.{part}", name, shape)
