"""What a round must read and compute: the bytes and products that its speed is measured by."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from zllm.backend.contract import Op, PlanKey, Weight
from zllm.embedded import Engine

BY_ROWS = frozenset({"embed", "route_by_token"})  # a row for each token: next to nothing


@dataclass(frozen=True, slots=True)
class Traffic:
    """Of one decode round; experts as many as `seqs` tokens are expected to choose."""

    weight_bytes: float
    products: float  # weights that each token is multiplied with, the head among them


def decode_traffic(engine: Engine, seqs: int) -> Traffic:
    backend: Any = engine.backend
    key = PlanKey(rows=seqs, seqs=seqs, context=min(engine.context, 128), emit="token")
    size_bytes = products = 0.0
    for op in engine._loop.plans.record(key).ops:
        for weight in weights_read(op):
            size_bytes += backend.weight_bytes(weight) * chosen_share(op, seqs)
            if len(weight.shape) == 2:
                products += math.prod(weight.shape) * chosen_share(op, 1)
    return Traffic(size_bytes, products)


def weights_read(op: Op) -> list[Weight]:
    """Whole weights, or an expected share of experts; tables are read a row at a time."""
    if op.name in BY_ROWS:
        return []
    found = [operand for operand in op.ins if isinstance(operand, Weight)]
    return [weight for weight in found if not weight.name.startswith("rope_table.")]


def chosen_share(op: Op, tokens: int) -> float:
    """Of an op's weights, what `tokens` tokens read that choose their experts independently."""
    if op.name != "experts":
        return 1.0
    routed: Any = op.ins[1]
    chosen = routed.shape[-1]
    return float(1 - (1 - chosen / op.spec.experts) ** tokens)
