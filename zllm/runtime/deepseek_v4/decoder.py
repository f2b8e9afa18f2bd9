"""DeepSeek V4: hyper-connections around compressed attention, then around experts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from zllm.activation import GatedSpec
from zllm.attention.compressed import CompressedSpec
from zllm.attention.dsa import SelectSpec
from zllm.backend.capability import Compressed, Core, Hyper, Moe, Resources, Rotary
from zllm.backend.contract import Value, Weight
from zllm.hyper_connection import HyperSpec
from zllm.model_spec.deepseek_v4 import DeepseekV4Config
from zllm.moe.experts import ExpertsSpec
from zllm.moe.routing import RouteSpec
from zllm.runtime.blocks import hyper, moe
from zllm.runtime.blocks.compressed import CompressedAttention, CompressedLayer
from zllm.runtime.blocks.hyper import Mix
from zllm.runtime.blocks.moe import MoeLayer, MoeSpec
from zllm.runtime.blocks.rope import rope_spec


class Ops(Core, Compressed, Hyper, Moe, Rotary, Protocol):
    """The capabilities that the model needs."""


@dataclass(frozen=True, slots=True)
class Layer:
    attn_mix: Mix
    attn_norm: Weight  # [D]
    attention: CompressedAttention
    ffn_mix: Mix
    ffn_norm: Weight  # [D]
    experts: MoeLayer


class Decoder:
    def __init__(self, config: DeepseekV4Config, resources: Resources) -> None:
        c, r = config, resources
        self.config = config
        self.streams = HyperSpec(c.hyper.streams, c.hyper.eps, c.norm_eps, c.hyper.iterations)
        self.embedding = r.weight("embed")  # [V, D]
        self.norm = r.weight("norm")
        self.head = self.embedding if c.tied_embeddings else r.weight("head")
        self.head_mix = hyper.load(r, "head_hc.", read_by="hc_head")
        self.layers = [self._layer(i, r) for i in range(c.layers)]

    def _layer(self, i: int, r: Resources) -> Layer:
        at = f"layers.{i}."
        return Layer(
            attn_mix=hyper.load(r, f"{at}attn_hc."),
            attn_norm=r.weight(f"{at}attn_norm"),
            attention=CompressedAttention(r, at, self._attention_spec(i, r)),
            ffn_mix=hyper.load(r, f"{at}ffn_hc."),
            ffn_norm=r.weight(f"{at}ffn_norm"),
            experts=moe.load(r, at, self._experts_spec(i)),
        )

    def _attention_spec(self, i: int, r: Resources) -> CompressedLayer:
        """Layers with entries turn by other frequencies than those that see a window only."""
        c, compression = self.config, self.config.compression[i]
        index = None
        if compression is not None and compression.chosen:
            index = SelectSpec(c.index.heads, c.index.size, c.index.top_k)
        rate = compression.rate if compression else 0
        return CompressedLayer(
            heads=CompressedSpec(c.heads, c.head_size, c.window, rate),
            output_groups=c.output_groups,
            eps=c.norm_eps,
            table=r.rope_table(rope_spec(c.compressed_rope if rate else c.rope, c.rotated)),
            index=index,
        )

    def _experts_spec(self, i: int) -> MoeSpec:
        e = self.config.experts
        gated = GatedSpec("silu", e.limit)
        return MoeSpec(
            route=RouteSpec(e.score, e.chosen, e.normalise, e.scale),
            experts=ExpertsSpec(e.experts, e.width, gated),
            correction=not e.by_token[i],
            by_token=e.by_token[i],
            shared=gated if e.shared_width else None,
        )

    def __call__(self, ops: Ops) -> None:
        """One round over R rows; prefill, append and decode differ only in their step words."""
        x = ops.hc_start(ops.embed(self.embedding), self.streams)  # [R, N·D]
        for layer in self.layers:
            x = self._block(ops, layer, x)
        mix = self.head_mix
        y = ops.hc_head(x, mix.fn, mix.base, mix.scale, self.streams)  # [R, D]
        ops.emit(y, self.norm, self.head, self.config.norm_eps)

    def _block(self, ops: Ops, w: Layer, x: Value) -> Value:
        eps, mix = self.config.norm_eps, w.attn_mix

        h, post, comb = ops.hc_split(x, mix.fn, mix.base, mix.scale, self.streams)
        f = w.attention(ops, ops.rms_norm(h, w.attn_norm, eps))  # [R, D]
        x = ops.hc_join(f, x, post, comb)

        mix = w.ffn_mix
        h, post, comb = ops.hc_split(x, mix.fn, mix.base, mix.scale, self.streams)
        f = moe.moe(ops, w.experts, ops.rms_norm(h, w.ffn_norm, eps))
        return ops.hc_join(f, x, post, comb)
