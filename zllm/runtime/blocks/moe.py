"""A mixture-of-experts layer: a router, the experts it chooses, perhaps one for every token.

Canonical names below a layer's prefix: `router`, `router.bias` (of the product),
`router.correction` (picks, does not weigh) or `router.table` (experts by token id);
`experts.{e}.gate`, `.up` and `.down`, or `.gate_up` where the rows of both alternate, each perhaps
with `.bias`; `shared.gate`, `shared.up`, `shared.down`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from zllm.activation import GatedSpec
from zllm.backend.capability import Core, Moe, Resources
from zllm.backend.contract import Value, Weight
from zllm.moe.experts import ExpertsSpec
from zllm.moe.routing import RouteSpec
from zllm.runtime.blocks import feed_forward
from zllm.runtime.blocks.feed_forward import FeedForward


class Ops(Core, Moe, Protocol):
    """The capabilities that the layer needs."""


@dataclass(frozen=True, slots=True)
class MoeSpec:
    route: RouteSpec
    experts: ExpertsSpec
    router_bias: bool = False
    correction: bool = False
    by_token: bool = False  # experts come from a table, the router only weighs them
    expert_biases: bool = False
    shared: GatedSpec | None = None  # of the expert that every token meets


@dataclass(frozen=True, slots=True)
class MoeLayer:
    spec: MoeSpec
    router: Weight  # [E, D]
    router_bias: Weight | None  # [E]
    correction: Weight | None  # [E]
    table: Weight | None  # [V, k]
    gate_up: Weight  # [E·2F, D]
    down: Weight  # [E·D, F]
    biases: tuple[Weight, Weight] | None  # [E·2F], [E·D]
    shared: FeedForward | None


def load(r: Resources, prefix: str, spec: MoeSpec) -> MoeLayer:
    """The layer's weights; `prefix` ends with a dot, as in `layers.3.`."""

    def given(present: bool, name: str, read_by: str = "") -> Weight | None:
        return r.weight(prefix + name, read_by=read_by) if present else None

    def joined(*parts: str, rows: int = 1) -> Weight:
        """Of all experts; those `rows` of each together."""
        each = range(spec.experts.experts)
        names = (f"{prefix}experts.{e}.{part}" for e in each for part in parts)
        return r.weight(*names, together=rows)

    gate_up = ("gate_up",) if spec.experts.interleaved else ("gate", "up")
    biases = None
    if spec.expert_biases:
        biases = joined(*(f"{part}.bias" for part in gate_up)), joined("down.bias")
    router = r.weight(f"{prefix}router")
    return MoeLayer(
        spec=spec,
        router=router,
        router_bias=given(spec.router_bias, "router.bias"),
        correction=given(spec.correction, "router.correction"),
        table=given(spec.by_token, "router.table", "route_by_token"),
        gate_up=joined(*gate_up, rows=2 * spec.experts.width),
        down=joined("down", rows=router.shape[1]),
        biases=biases,
        shared=feed_forward.load(r, f"{prefix}shared.", spec.shared) if spec.shared else None,
    )


def moe(ops: Ops, w: MoeLayer, h: Value, residual: Value | None = None) -> Value:
    """Σ weight · expert(h) + shared(h) + residual: [R, D] -> [R, D]."""
    logits = ops.linear(h, w.router, bias=w.router_bias)  # [R, E]
    if w.table is not None:
        routed = ops.route_by_token(logits, w.table, w.spec.route)
    else:
        routed = ops.route(logits, w.spec.route, bias=w.correction)
    y = ops.experts(h, routed, w.gate_up, w.down, w.spec.experts, biases=w.biases)
    if residual is not None:
        y = ops.add(residual, y)
    return y if w.shared is None else feed_forward.feed_forward(ops, w.shared, h, y)
