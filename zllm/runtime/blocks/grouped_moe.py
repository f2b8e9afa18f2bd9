"""Layers of which some have experts behind a grouped sigmoid router [2412.19437], others none."""

from __future__ import annotations

from zllm.activation import GatedSpec
from zllm.backend.capability import Resources
from zllm.backend.contract import Value
from zllm.model_spec.grouped_experts import GroupedExperts
from zllm.moe.experts import ExpertsSpec
from zllm.moe.routing import RouteSpec
from zllm.runtime.blocks import feed_forward, moe
from zllm.runtime.blocks.feed_forward import FeedForward
from zllm.runtime.blocks.moe import MoeLayer, MoeSpec

Ffn = FeedForward | MoeLayer


def moe_spec(experts: GroupedExperts, gated: GatedSpec) -> MoeSpec:
    e = experts
    return MoeSpec(
        route=RouteSpec(
            score="sigmoid",
            top_k=e.chosen,
            normalise=e.normalise,
            scale=e.scale,
            groups=e.groups,
            kept_groups=e.kept_groups,
        ),
        experts=ExpertsSpec(e.experts, e.width, gated),
        correction=True,
        shared=gated if e.shared_width else None,
    )


def load(r: Resources, prefix: str, sparse: MoeSpec | None, gated: GatedSpec) -> Ffn:
    """The experts of a sparse layer, else one feed-forward layer; `prefix` ends with a dot."""
    if sparse is not None:
        return moe.load(r, prefix, sparse)
    return feed_forward.load(r, prefix, gated)


def ffn(ops: moe.Ops, w: Ffn, h: Value, residual: Value | None = None) -> Value:
    """ffn(h) + residual: [R, D] -> [R, D]."""
    if isinstance(w, MoeLayer):
        return moe.moe(ops, w, h, residual)
    return feed_forward.feed_forward(ops, w, h, residual)
