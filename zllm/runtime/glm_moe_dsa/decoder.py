"""GLM-5 [2602.15763]: latent attention over what an indexer chooses, for a run of layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from zllm.activation import GatedSpec
from zllm.attention.dsa import SelectSpec
from zllm.backend.capability import Core, Dsa, Mla, Moe, Resources, Rotary
from zllm.backend.contract import Value, Weight
from zllm.model_spec.glm_moe_dsa import GlmMoeDsaConfig
from zllm.runtime.blocks import grouped_moe
from zllm.runtime.blocks.dsa import Indexer
from zllm.runtime.blocks.grouped_moe import Ffn
from zllm.runtime.blocks.mla import LatentAttention, MlaLayer, Rotation, mla_spec
from zllm.runtime.blocks.rope import rope_spec

# Norms of the latents: transformers, models/glm_moe_dsa, whatever the config says.
LATENT_EPS = 1e-6


class Ops(Core, Dsa, Mla, Moe, Rotary, Protocol):
    """The capabilities that GLM-5 needs."""


@dataclass(frozen=True, slots=True)
class Layer:
    attn_norm: Weight  # [D]
    attention: LatentAttention
    indexer: Indexer | None  # None: the choice of the last layer that has one
    ffn_norm: Weight  # [D]
    ffn: Ffn


class Decoder:
    def __init__(self, config: GlmMoeDsaConfig, resources: Resources) -> None:
        c, r = config.base, resources
        self.config = config
        self.embedding = r.weight("embed")  # [V, D]
        self.norm = r.weight("norm")
        self.head = self.embedding if c.tied_embeddings else r.weight("head")
        self.angles = r.rope_table(rope_spec(c.rope, c.latent.rotated))
        self.attention = MlaLayer(
            heads=mla_spec(c.latent, c.heads, score_factor=c.rope.score_factor),
            query_rank=c.latent.query_rank,
            eps=LATENT_EPS,
            rotation=Rotation(self.angles, c.rope_interleaved),
            bias=c.attention_bias,
        )
        self.layers = [self._layer(i, r) for i in range(c.layers)]

    def _layer(self, i: int, r: Resources) -> Layer:
        at, gated = f"layers.{i}.", GatedSpec("silu")
        c, index = self.config.base, self.config.index
        sparse = grouped_moe.moe_spec(c.experts, gated) if c.sparse[i] else None
        select = SelectSpec(index.heads, index.size, index.top_k)
        turned = Rotation(self.angles, self.config.index_interleaved)
        return Layer(
            attn_norm=r.weight(f"{at}attn_norm"),
            attention=LatentAttention(r, at, self.attention),
            indexer=Indexer(r, at, select, turned) if self.config.chooses[i] else None,
            ffn_norm=r.weight(f"{at}ffn_norm"),
            ffn=grouped_moe.load(r, at, sparse, gated),
        )

    def __call__(self, ops: Ops) -> None:
        """One round over R rows; prefill, append and decode differ only in their step words."""
        x = ops.embed(self.embedding)  # [R, D]
        chosen: Value | None = None
        for layer in self.layers:
            x, chosen = self._block(ops, layer, x, chosen)
        ops.emit(x, self.norm, self.head, self.config.base.norm_eps)

    def _block(
        self, ops: Ops, w: Layer, x: Value, chosen: Value | None
    ) -> tuple[Value, Value | None]:
        eps = self.config.base.norm_eps

        h = ops.rms_norm(x, w.attn_norm, eps)
        query = w.attention.query(ops, h)
        if w.indexer is not None:
            chosen = w.indexer(ops, h, query.latent)  # [R, top_k]
        x = w.attention.attend(ops, query, chosen=chosen, residual=x)

        h = ops.rms_norm(x, w.ffn_norm, eps)
        return grouped_moe.ffn(ops, w.ffn, h, residual=x), chosen
