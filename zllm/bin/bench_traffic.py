"""What a round must read and compute: the bytes and products that its speed is measured by."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from zllm.backend.contract import PlanKey
from zllm.backend.traffic import chosen_share, weights_read
from zllm.embedded import Engine


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
