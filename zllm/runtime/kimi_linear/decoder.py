"""Kimi Linear [2510.26692]: three KDA layers, then a latent attention without position."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from zllm.activation import GatedSpec
from zllm.backend.capability import Core, Kda, Mla, Moe, Resources, Rotary
from zllm.backend.contract import Value, Weight
from zllm.model_spec.kimi_linear import KimiLinearConfig
from zllm.runtime.blocks import grouped_moe
from zllm.runtime.blocks.grouped_moe import Ffn
from zllm.runtime.blocks.kda import DeltaAttention
from zllm.runtime.blocks.mla import LatentAttention, MlaLayer, mla_spec

# Norms of the latents: transformers, models/kimi_linear, whatever the config says.
LATENT_EPS = 1e-6


class Ops(Core, Kda, Mla, Moe, Rotary, Protocol):
    """The capabilities that Kimi Linear needs."""


@dataclass(frozen=True, slots=True)
class Layer:
    attn_norm: Weight  # [D]
    attention: DeltaAttention | LatentAttention
    ffn_norm: Weight  # [D]
    ffn: Ffn


class Decoder:
    def __init__(self, config: KimiLinearConfig, resources: Resources) -> None:
        c, r = config, resources
        self.config = config
        self.embedding = r.weight("embed")  # [V, D]
        self.norm = r.weight("norm")
        self.head = self.embedding if c.tied_embeddings else r.weight("head")
        self.latent = MlaLayer(
            heads=mla_spec(c.latent, c.heads),
            query_rank=c.latent.query_rank,
            eps=LATENT_EPS,
            rotation=None,
        )
        self.layers = [self._layer(i, r) for i in range(c.layers)]

    def _layer(self, i: int, r: Resources) -> Layer:
        c, at, gated = self.config, f"layers.{i}.", GatedSpec("silu")
        attention: DeltaAttention | LatentAttention
        if c.is_linear[i]:
            attention = DeltaAttention(r, at, c.linear, c.norm_eps)
        else:
            attention = LatentAttention(r, at, self.latent)
        sparse = grouped_moe.moe_spec(c.experts, gated) if c.sparse[i] else None
        return Layer(
            attn_norm=r.weight(f"{at}attn_norm"),
            attention=attention,
            ffn_norm=r.weight(f"{at}ffn_norm"),
            ffn=grouped_moe.load(r, at, sparse, gated),
        )

    def __call__(self, ops: Ops) -> None:
        """One round over R rows; prefill, append and decode differ only in their step words."""
        x = ops.embed(self.embedding)  # [R, D]
        for layer in self.layers:
            x = self._block(ops, layer, x)
        ops.emit(x, self.norm, self.head, self.config.norm_eps)

    def _block(self, ops: Ops, w: Layer, x: Value) -> Value:
        eps = self.config.norm_eps

        h = ops.rms_norm(x, w.attn_norm, eps)
        x = w.attention(ops, h, residual=x)

        h = ops.rms_norm(x, w.ffn_norm, eps)
        return grouped_moe.ffn(ops, w.ffn, h, residual=x)
