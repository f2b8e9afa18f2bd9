"""DeepSeek V3.2 [2512.02556]: DeepSeek V3 whose attention sees what an indexer chooses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from zllm.activation import GatedSpec
from zllm.attention.dsa import SelectSpec
from zllm.backend.capability import Core, Dsa, Mla, Moe, Resources, Rotary
from zllm.backend.contract import Value, Weight
from zllm.model_spec.deepseek_v32 import DeepseekV32Config
from zllm.runtime.blocks import grouped_moe
from zllm.runtime.blocks.dsa import Indexer
from zllm.runtime.blocks.grouped_moe import Ffn
from zllm.runtime.blocks.mla import LatentAttention, MlaLayer, Rotation, mla_spec
from zllm.runtime.blocks.rope import rope_spec

# Norms of the latents: transformers, models/deepseek_v32, whatever the config says.
LATENT_EPS = 1e-6


class Ops(Core, Dsa, Mla, Moe, Rotary, Protocol):
    """The capabilities that DeepSeek V3.2 needs."""


@dataclass(frozen=True, slots=True)
class Layer:
    attn_norm: Weight  # [D]
    attention: LatentAttention
    indexer: Indexer
    ffn_norm: Weight  # [D]
    ffn: Ffn


class Decoder:
    def __init__(self, config: DeepseekV32Config, resources: Resources) -> None:
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
        return Layer(
            attn_norm=r.weight(f"{at}attn_norm"),
            attention=LatentAttention(r, at, self.attention),
            indexer=Indexer(r, at, select, Rotation(self.angles, interleaved=False)),
            ffn_norm=r.weight(f"{at}ffn_norm"),
            ffn=grouped_moe.load(r, at, sparse, gated),
        )

    def __call__(self, ops: Ops) -> None:
        """One round over R rows; prefill, append and decode differ only in their step words."""
        x = ops.embed(self.embedding)  # [R, D]
        for layer in self.layers:
            x = self._block(ops, layer, x)
        ops.emit(x, self.norm, self.head, self.config.base.norm_eps)

    def _block(self, ops: Ops, w: Layer, x: Value) -> Value:
        eps = self.config.base.norm_eps

        h = ops.rms_norm(x, w.attn_norm, eps)
        query = w.attention.query(ops, h)
        chosen = w.indexer(ops, h, query.latent)  # [R, top_k]
        x = w.attention.attend(ops, query, chosen=chosen, residual=x)

        h = ops.rms_norm(x, w.ffn_norm, eps)
        return grouped_moe.ffn(ops, w.ffn, h, residual=x)
