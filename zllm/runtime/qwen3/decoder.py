"""Qwen3 [2505.09388]: llama with an RMSNorm over each head of q and k."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from zllm.activation import GatedSpec
from zllm.attention.gqa import GqaSpec
from zllm.backend.capability import Core, Gqa, Resources
from zllm.backend.contract import Cache, Value, Weight
from zllm.kv_cache.spec import KvSpec
from zllm.model_spec.qwen3 import Qwen3Config
from zllm.runtime.blocks import feed_forward
from zllm.runtime.blocks.feed_forward import FeedForward
from zllm.runtime.blocks.rope import rope_spec


class Ops(Core, Gqa, Protocol):
    """The capabilities that the model needs."""


@dataclass(frozen=True, slots=True)
class Layer:
    attn_norm: Weight  # [D]
    qkv: Weight  # [(H + 2G)·K, D]
    qkv_bias: Weight | None
    q_norm: Weight  # [K], of each head
    k_norm: Weight  # [K]
    heads: GqaSpec
    o: Weight  # [D, H·K]
    o_bias: Weight | None
    ffn_norm: Weight  # [D]
    ffn: FeedForward
    cache: Cache


class Decoder:
    def __init__(self, config: Qwen3Config, resources: Resources) -> None:
        c, r = config, resources
        self.config = config
        self.embedding = r.weight("embed")  # [V, D]
        self.norm = r.weight("norm")
        self.head = self.embedding if c.tied_embeddings else r.weight("head")
        self.rope = r.rope_table(rope_spec(c.rope, c.head_size))
        self.layers = [self._layer(i, resources) for i in range(c.layers)]

    def _layer(self, i: int, r: Resources) -> Layer:
        c, prefix = self.config, f"layers.{i}."

        def bias(*names: str) -> Weight | None:
            return r.weight(*(f"{prefix}{n}.bias" for n in names)) if c.attention_bias else None

        return Layer(
            attn_norm=r.weight(f"{prefix}attn_norm"),
            qkv=r.weight(*(prefix + name for name in "qkv")),
            qkv_bias=bias("q", "k", "v"),
            q_norm=r.weight(f"{prefix}q_norm"),
            k_norm=r.weight(f"{prefix}k_norm"),
            heads=GqaSpec(
                c.heads,
                c.kv_heads,
                c.head_size,
                c.head_size**-0.5,
                c.head_size,
                window=c.windows[i],
            ),
            o=r.weight(f"{prefix}o"),
            o_bias=bias("o"),
            ffn_norm=r.weight(f"{prefix}ffn_norm"),
            ffn=feed_forward.load(r, prefix, GatedSpec(c.activation)),
            cache=r.cache(f"{prefix}kv", KvSpec(c.kv_heads, c.head_size)),
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
        q, k = ops.rms_norm(q, w.q_norm, eps), ops.rms_norm(k, w.k_norm, eps)
        q = ops.rope_append(q, k, v, w.cache, self.rope, w.heads)
        a = ops.attend(q, w.cache, w.heads)  # [R, H·K]
        x = ops.linear(a, w.o, bias=w.o_bias, residual=x)

        h = ops.rms_norm(x, w.ffn_norm, eps)
        return feed_forward.feed_forward(ops, w.ffn, h, x)
