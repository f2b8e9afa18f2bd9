"""Llama [2302.13971]: pre-norm blocks of grouped-query attention and a gated feed-forward layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from zllm.activation import GatedSpec
from zllm.attention.gqa import GqaSpec
from zllm.backend.capability import Core, Gqa, Resources
from zllm.backend.contract import Cache, Value, Weight
from zllm.kv_cache.spec import KvSpec
from zllm.model_spec.llama import LlamaConfig
from zllm.runtime.blocks.rope import rope_spec


class Ops(Core, Gqa, Protocol):
    """The capabilities that llama needs."""


@dataclass(frozen=True, slots=True)
class Layer:
    attn_norm: Weight  # [D]
    qkv: Weight  # [(H + 2G)·K, D]
    qkv_bias: Weight | None
    o: Weight  # [D, H·K]
    o_bias: Weight | None
    ffn_norm: Weight  # [D]
    gate_up: Weight  # [2F, D]
    gate_up_bias: Weight | None
    down: Weight  # [D, F]
    down_bias: Weight | None
    cache: Cache


class Decoder:
    def __init__(self, config: LlamaConfig, resources: Resources) -> None:
        c, r = config, resources
        self.config = config
        self.heads = GqaSpec(
            c.heads, c.kv_heads, c.head_size, c.head_size**-0.5, c.head_size, c.rope.interleaved
        )
        self.gated = GatedSpec(c.activation)
        self.embedding = r.weight("embed")  # [V, D]
        self.norm = r.weight("norm")
        self.head = self.embedding if c.tied_embeddings else r.weight("head")
        self.rope = r.rope_table(rope_spec(c.rope, c.head_size))
        self.layers = [self._layer(i, resources) for i in range(c.layers)]

    def _layer(self, i: int, r: Resources) -> Layer:
        c = self.config

        def joined(*names: str) -> Weight:
            return r.weight(*(f"layers.{i}.{name}" for name in names))

        def bias(present: bool, *names: str) -> Weight | None:
            return joined(*(f"{name}.bias" for name in names)) if present else None

        return Layer(
            attn_norm=joined("attn_norm"),
            qkv=joined("q", "k", "v"),
            qkv_bias=bias(c.attention_bias, "q", "k", "v"),
            o=joined("o"),
            o_bias=bias(c.attention_bias, "o"),
            ffn_norm=joined("ffn_norm"),
            gate_up=joined("gate", "up"),
            gate_up_bias=bias(c.mlp_bias, "gate", "up"),
            down=joined("down"),
            down_bias=bias(c.mlp_bias, "down"),
            cache=r.cache(f"layers.{i}.kv", KvSpec(c.kv_heads, c.head_size)),
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
        q, k, v = ops.project(h, w.qkv, bias=w.qkv_bias)  # [R, H·K], [R, G·K], [R, G·K]
        q = ops.rope_append(q, k, v, w.cache, self.rope, self.heads)
        a = ops.attend(q, w.cache, self.heads)  # [R, H·K]
        x = ops.linear(a, w.o, bias=w.o_bias, residual=x)

        h = ops.rms_norm(x, w.ffn_norm, eps)
        f = ops.gated_linear(h, w.gate_up, self.gated, bias=w.gate_up_bias)  # [R, F]
        return ops.linear(f, w.down, bias=w.down_bias, residual=x)
