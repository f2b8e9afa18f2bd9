"""Gemma 3 [2503.19786]: norms before and after each sublayer, windows in most layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from zllm.activation import GatedSpec
from zllm.attention.gqa import GqaSpec
from zllm.backend.capability import Core, Gqa, Resources
from zllm.backend.contract import Cache, Value, Weight
from zllm.kv_cache.spec import KvSpec
from zllm.model_spec.gemma3 import Gemma3Config
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
    rope: Weight
    o: Weight  # [D, H·K]
    o_bias: Weight | None
    post_attn_norm: Weight  # [D]
    ffn_norm: Weight  # [D]
    ffn: FeedForward
    post_ffn_norm: Weight  # [D]
    cache: Cache


class Decoder:
    def __init__(self, config: Gemma3Config, resources: Resources) -> None:
        c, r = config, resources
        self.config = config
        self.embedding = r.weight("embed")  # [V, D]
        self.norm = r.weight("norm")
        self.head = self.embedding if c.tied_embeddings else r.weight("head")
        self.layers = [self._layer(i, resources) for i in range(c.layers)]

    def _layer(self, i: int, r: Resources) -> Layer:
        c, prefix, window = self.config, f"layers.{i}.", self.config.windows[i]

        def bias(*names: str) -> Weight | None:
            return r.weight(*(f"{prefix}{n}.bias" for n in names)) if c.attention_bias else None

        return Layer(
            attn_norm=r.weight(f"{prefix}attn_norm"),
            qkv=r.weight(*(prefix + name for name in "qkv")),
            qkv_bias=bias("q", "k", "v"),
            q_norm=r.weight(f"{prefix}q_norm"),
            k_norm=r.weight(f"{prefix}k_norm"),
            heads=GqaSpec(
                c.heads, c.kv_heads, c.head_size, c.score_scale, c.head_size, window=window
            ),
            rope=r.rope_table(rope_spec(c.local_rope if window else c.rope, c.head_size)),
            o=r.weight(f"{prefix}o"),
            o_bias=bias("o"),
            post_attn_norm=r.weight(f"{prefix}post_attn_norm"),
            ffn_norm=r.weight(f"{prefix}ffn_norm"),
            ffn=feed_forward.load(r, prefix, GatedSpec(c.activation)),
            post_ffn_norm=r.weight(f"{prefix}post_ffn_norm"),
            cache=r.cache(f"{prefix}kv", KvSpec(c.kv_heads, c.head_size)),
        )

    def __call__(self, ops: Ops) -> None:
        """One round over R rows; prefill, append and decode differ only in their step words."""
        c = self.config
        x = ops.embed(self.embedding, scale=c.width**0.5)  # [R, D]
        for layer in self.layers:
            x = self._block(ops, layer, x)
        ops.emit(x, self.norm, self.head, c.norm_eps, offset=c.norm_offset, soft_cap=c.logit_cap)

    def _block(self, ops: Ops, w: Layer, x: Value) -> Value:
        def norm(x: Value, weight: Weight) -> Value:
            return ops.rms_norm(x, weight, self.config.norm_eps, offset=self.config.norm_offset)

        h = norm(x, w.attn_norm)
        q, k, v = ops.project(h, w.qkv, bias=w.qkv_bias)  # [R, H·K], [R, G·K], [R, G·K]
        q, k = norm(q, w.q_norm), norm(k, w.k_norm)
        q = ops.rope_append(q, k, v, w.cache, w.rope, w.heads)
        a = ops.attend(q, w.cache, w.heads)  # [R, H·K]
        x = ops.add(x, norm(ops.linear(a, w.o, bias=w.o_bias), w.post_attn_norm))

        f = feed_forward.feed_forward(ops, w.ffn, norm(x, w.ffn_norm))
        return ops.add(x, norm(f, w.post_ffn_norm))
