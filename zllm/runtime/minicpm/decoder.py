"""MiniCPM [2404.06395]: llama with scaled embeddings, residual branches and final hidden."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from zllm.activation import GatedSpec
from zllm.attention.gqa import GqaSpec
from zllm.backend.capability import Core, Gqa, Resources
from zllm.backend.contract import Cache, Value, Weight
from zllm.kv_cache.spec import KvSpec
from zllm.model_spec.minicpm import MiniCpmConfig
from zllm.runtime.blocks.rope import rope_spec


class Ops(Core, Gqa, Protocol):
    """The capabilities that the model needs."""


@dataclass(frozen=True, slots=True)
class Layer:
    attn_norm: Weight  # [D]
    qkv: Weight  # [(H + 2G)·K, D]
    qkv_bias: Weight | None
    o: Weight  # [D, H·K]
    o_bias: Weight | None
    ffn_norm: Weight  # [D]
    gate_up: Weight  # [2F, D]
    down: Weight  # [D, F]
    cache: Cache


class Decoder:
    def __init__(self, config: MiniCpmConfig, resources: Resources) -> None:
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
        c, prefix = self.config, f"layers.{i}."

        def bias(*names: str) -> Weight | None:
            return r.weight(*(f"{prefix}{n}.bias" for n in names)) if c.attention_bias else None

        return Layer(
            attn_norm=r.weight(f"{prefix}attn_norm"),
            qkv=r.weight(*(prefix + name for name in "qkv")),
            qkv_bias=bias("q", "k", "v"),
            o=r.weight(f"{prefix}o"),
            o_bias=bias("o"),
            ffn_norm=r.weight(f"{prefix}ffn_norm"),
            gate_up=r.weight(f"{prefix}gate", f"{prefix}up"),
            down=r.weight(f"{prefix}down"),
            cache=r.cache(f"{prefix}kv", KvSpec(c.kv_heads, c.head_size)),
        )

    def __call__(self, ops: Ops) -> None:
        """One round over R rows; prefill, append and decode differ only in their step words."""
        c = self.config
        x = ops.embed(self.embedding, scale=c.embedding_scale)  # [R, D]
        for layer in self.layers:
            x = self._block(ops, layer, x)
        ops.emit(x, self.norm, self.head, c.norm_eps, scale=c.head_scale)

    def _block(self, ops: Ops, w: Layer, x: Value) -> Value:
        eps, branch = self.config.norm_eps, self.config.branch_scale

        h = ops.rms_norm(x, w.attn_norm, eps)
        q, k, v = ops.project(h, w.qkv, bias=w.qkv_bias)  # [R, H·K], [R, G·K], [R, G·K]
        q = ops.rope_append(q, k, v, w.cache, self.rope, self.heads)
        a = ops.attend(q, w.cache, self.heads)  # [R, H·K]
        x = ops.linear(a, w.o, bias=w.o_bias, residual=x, scale=branch)

        h = ops.rms_norm(x, w.ffn_norm, eps)
        f = ops.gated_linear(h, w.gate_up, self.gated)  # [R, F]
        return ops.linear(f, w.down, residual=x, scale=branch)
