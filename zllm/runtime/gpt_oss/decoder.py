"""gpt-oss [2508.10925]: attention with sinks, every second layer within a window, then experts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from zllm.activation import GatedSpec
from zllm.attention.gqa import GqaSpec
from zllm.backend.capability import Core, Gqa, Moe, Resources
from zllm.backend.contract import Cache, Value, Weight
from zllm.kv_cache.spec import KvSpec
from zllm.model_spec.gpt_oss import GptOssConfig
from zllm.moe.experts import ExpertsSpec
from zllm.moe.routing import RouteSpec
from zllm.runtime.blocks import moe
from zllm.runtime.blocks.moe import MoeLayer, MoeSpec
from zllm.runtime.blocks.rope import rope_spec


class Ops(Core, Gqa, Moe, Protocol):
    """The capabilities that the model needs."""


@dataclass(frozen=True, slots=True)
class Layer:
    heads: GqaSpec
    attn_norm: Weight  # [D]
    qkv: Weight  # [(H + 2G)·K, D]
    qkv_bias: Weight | None
    sinks: Weight  # [H]
    o: Weight  # [D, H·K]
    o_bias: Weight | None
    ffn_norm: Weight  # [D]
    experts: MoeLayer
    cache: Cache


class Decoder:
    def __init__(self, config: GptOssConfig, resources: Resources) -> None:
        c, r = config, resources
        self.config = config
        self.moe = MoeSpec(
            RouteSpec("softmax_of_chosen", c.chosen_experts),
            ExpertsSpec(
                c.experts,
                c.ffn_width,
                GatedSpec("swiglu_oai", c.limit, c.alpha),
                c.interleaved,
            ),
            router_bias=True,
            expert_biases=True,
        )
        self.embedding = r.weight("embed")  # [V, D]
        self.norm = r.weight("norm")
        self.head = self.embedding if c.tied_embeddings else r.weight("head")
        self.rope = r.rope_table(rope_spec(c.rope, c.head_size))
        self.layers = [self._layer(i, resources) for i in range(c.layers)]

    def _layer(self, i: int, r: Resources) -> Layer:
        c, prefix = self.config, f"layers.{i}."

        def joined(*names: str) -> Weight:
            return r.weight(*(prefix + name for name in names))

        def bias(*names: str) -> Weight | None:
            return joined(*(f"{name}.bias" for name in names)) if c.attention_bias else None

        return Layer(
            heads=GqaSpec(
                c.heads,
                c.kv_heads,
                c.head_size,
                c.head_size**-0.5,
                c.head_size,
                window=c.windows[i],
            ),
            attn_norm=joined("attn_norm"),
            qkv=joined("q", "k", "v"),
            qkv_bias=bias("q", "k", "v"),
            sinks=joined("sinks"),
            o=joined("o"),
            o_bias=bias("o"),
            ffn_norm=joined("ffn_norm"),
            experts=moe.load(r, prefix, self.moe),
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
        q = ops.rope_append(q, k, v, w.cache, self.rope, w.heads)
        a = ops.attend(q, w.cache, w.heads, sinks=w.sinks)  # [R, H·K]
        x = ops.linear(a, w.o, bias=w.o_bias, residual=x)

        h = ops.rms_norm(x, w.ffn_norm, eps)
        return moe.moe(ops, w.experts, h, x)
