"""GLM-5.3-Flash: hyper-connections around KDA or sparse latent attention, then around experts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from zllm.activation import GatedSpec
from zllm.attention.dsa import SelectSpec
from zllm.backend.capability import Core, Dsa, Hyper, Kda, Mla, Moe, Resources, Rotary
from zllm.backend.contract import Value, Weight
from zllm.hyper_connection import HyperSpec
from zllm.model_spec.glm5_next import Glm5NextConfig
from zllm.runtime.blocks import grouped_moe, hyper
from zllm.runtime.blocks.dsa import Indexer
from zllm.runtime.blocks.grouped_moe import Ffn
from zllm.runtime.blocks.hyper import Mix
from zllm.runtime.blocks.kda import DeltaAttention
from zllm.runtime.blocks.mla import LatentAttention, MlaLayer, mla_spec


class Ops(Core, Dsa, Hyper, Kda, Mla, Moe, Rotary, Protocol):
    """The capabilities that GLM-5.3-Flash needs."""


@dataclass(frozen=True, slots=True)
class Layer:
    attn_mix: Mix
    attn_norm: Weight  # [D]
    attention: DeltaAttention | LatentAttention
    indexer: Indexer | None  # None: KDA, or the choice of the last layer that has one
    ffn_mix: Mix
    ffn_norm: Weight  # [D]
    ffn: Ffn


class Decoder:
    def __init__(self, config: Glm5NextConfig, resources: Resources) -> None:
        c, r = config, resources
        self.config = config
        self.streams = HyperSpec(c.hyper.streams, c.hyper.eps, c.norm_eps, c.hyper.iterations)
        self.select = SelectSpec(
            c.index.heads, c.index.size, c.index.top_k, c.pools.size, c.pools.tail
        )
        self.latent = MlaLayer(
            heads=mla_spec(c.latent, c.heads),
            query_rank=c.latent.query_rank,
            eps=c.norm_eps,
            rotation=None,
            bias=c.attention_bias,
        )
        self.embedding = r.weight("embed")  # [V, D]
        self.norm = r.weight("norm")
        self.head = self.embedding if c.tied_embeddings else r.weight("head")
        self.layers = [self._layer(i, r) for i in range(c.layers)]

    def _layer(self, i: int, r: Resources) -> Layer:
        c, at, gated = self.config, f"layers.{i}.", GatedSpec("silu", self.config.clamp)
        attention: DeltaAttention | LatentAttention
        if c.is_linear[i]:
            attention = DeltaAttention(r, at, c.linear, c.norm_eps)
        else:
            attention = LatentAttention(r, at, self.latent)
        sparse = grouped_moe.moe_spec(c.experts, gated) if c.sparse[i] else None
        return Layer(
            attn_mix=hyper.load(r, f"{at}attn_hc."),
            attn_norm=r.weight(f"{at}attn_norm"),
            attention=attention,
            indexer=Indexer(r, at, self.select, None) if c.chooses[i] else None,
            ffn_mix=hyper.load(r, f"{at}ffn_hc."),
            ffn_norm=r.weight(f"{at}ffn_norm"),
            ffn=grouped_moe.load(r, at, sparse, gated),
        )

    def __call__(self, ops: Ops) -> None:
        """One round over R rows; prefill, append and decode differ only in their step words."""
        x = ops.hc_start(ops.embed(self.embedding), self.streams)  # [R, N·D]
        chosen: Value | None = None
        for layer in self.layers:
            x, chosen = self._attention(ops, layer, x, chosen)
            x = self._ffn(ops, layer, x)
        ops.emit(ops.hc_mean(x, self.streams), self.norm, self.head, self.config.norm_eps)

    def _attention(
        self, ops: Ops, w: Layer, x: Value, chosen: Value | None
    ) -> tuple[Value, Value | None]:
        mix = w.attn_mix
        h, post, comb = ops.hc_split(x, mix.fn, mix.base, mix.scale, self.streams)
        h = ops.rms_norm(h, w.attn_norm, self.config.norm_eps)
        if isinstance(w.attention, DeltaAttention):
            f = w.attention(ops, h)
        else:
            query = w.attention.query(ops, h)
            if w.indexer is not None:
                chosen = w.indexer(ops, h, query.latent)  # [R, top_k + P - 1]
            f = w.attention.attend(ops, query, chosen=chosen)
        return ops.hc_join(f, x, post, comb), chosen

    def _ffn(self, ops: Ops, w: Layer, x: Value) -> Value:
        mix = w.ffn_mix
        h, post, comb = ops.hc_split(x, mix.fn, mix.base, mix.scale, self.streams)
        h = ops.rms_norm(h, w.ffn_norm, self.config.norm_eps)
        return ops.hc_join(grouped_moe.ffn(ops, w.ffn, h), x, post, comb)
