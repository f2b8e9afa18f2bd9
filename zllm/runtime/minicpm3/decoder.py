"""MiniCPM3 [2404.06395]: latent attention, and scales on the embedding, each branch, the logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from zllm.activation import GatedSpec
from zllm.backend.capability import Core, Mla, Resources, Rotary
from zllm.backend.contract import Value, Weight
from zllm.model_spec.minicpm3 import Minicpm3Config
from zllm.runtime.blocks.mla import LatentAttention, MlaLayer, Rotation, mla_spec
from zllm.runtime.blocks.rope import rope_spec

# Norms of the latents: transformers, models/minicpm3, whatever the config says.
LATENT_EPS = 1e-6


class Ops(Core, Mla, Rotary, Protocol):
    """The capabilities that MiniCPM3 needs."""


@dataclass(frozen=True, slots=True)
class Layer:
    attn_norm: Weight  # [D]
    attention: LatentAttention
    ffn_norm: Weight  # [D]
    gate_up: Weight  # [2F, D]
    down: Weight  # [D, F]


class Decoder:
    def __init__(self, config: Minicpm3Config, resources: Resources) -> None:
        c, r = config, resources
        self.config = config
        self.gated = GatedSpec("silu")
        self.embedding = r.weight("embed")  # [V, D]
        self.norm = r.weight("norm")
        self.head = self.embedding if c.tied_embeddings else r.weight("head")
        table = r.rope_table(rope_spec(c.rope, c.latent.rotated))
        self.attention = MlaLayer(
            heads=mla_spec(c.latent, c.heads),
            query_rank=c.latent.query_rank,
            eps=LATENT_EPS,
            rotation=Rotation(table, interleaved=False),
            bias=c.attention_bias,
        )
        self.layers = [self._layer(i, r) for i in range(c.layers)]

    def _layer(self, i: int, r: Resources) -> Layer:
        at = f"layers.{i}."
        return Layer(
            attn_norm=r.weight(f"{at}attn_norm"),
            attention=LatentAttention(r, at, self.attention),
            ffn_norm=r.weight(f"{at}ffn_norm"),
            gate_up=r.weight(f"{at}gate", f"{at}up"),
            down=r.weight(f"{at}down"),
        )

    def __call__(self, ops: Ops) -> None:
        """One round over R rows; prefill, append and decode differ only in their step words."""
        c = self.config
        x = ops.embed(self.embedding, scale=c.embedding_scale)  # [R, D]
        for layer in self.layers:
            x = self._block(ops, layer, x)
        ops.emit(x, self.norm, self.head, c.norm_eps, scale=c.logit_scale)

    def _block(self, ops: Ops, w: Layer, x: Value) -> Value:
        eps, scale = self.config.norm_eps, self.config.branch_scale

        h = ops.rms_norm(x, w.attn_norm, eps)
        x = w.attention(ops, h, residual=x, scale=scale)

        h = ops.rms_norm(x, w.ffn_norm, eps)
        f = ops.gated_linear(h, w.gate_up, self.gated)  # [R, F]
        return ops.linear(f, w.down, residual=x, scale=scale)
