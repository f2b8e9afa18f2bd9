"""The model's matrix products alone, in NumPy: what the oracle's rounds are measured against."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zllm.backend.contract import PlanKey
from zllm.embedded import Engine
from zllm.errors import ZllmError

F32 = NDArray[np.float32]


class Products:
    """The fused products of one round over the engine's own weights, outputs placed once."""

    def __init__(self, engine: Engine, rows: int) -> None:
        """ZllmError unless the engine is the oracle with f32 weights."""
        matrices = _matrices(engine)
        random = np.random.default_rng(0)
        # The head sees the last row only.
        counts = [rows] * (len(matrices) - 1) + [1]
        inputs: dict[tuple[int, int], F32] = {}
        outputs: dict[tuple[int, int], F32] = {}
        self._calls: list[tuple[F32, F32, F32]] = []
        for w, count in zip(matrices, counts, strict=True):
            size, columns = w.shape
            x = inputs.setdefault(
                (count, columns), random.standard_normal((count, columns), np.float32)
            )
            out = outputs.setdefault((count, size), np.empty((count, size), np.float32))
            self._calls.append((x, w.T, out))

    def seconds(self, repeats: int) -> float:
        """Time of `repeats` rounds of products."""
        start = time.perf_counter()
        for _ in range(repeats):
            for x, w, out in self._calls:
                np.matmul(x, w, out=out)
        return time.perf_counter() - start


def _matrices(engine: Engine) -> list[F32]:
    """The weights [N, D] of a round's products in order, the head last."""
    backend: Any = engine.backend
    if backend.name != "oracle" or backend.packed:
        raise ZllmError("--products needs --backend oracle --resident f32")
    plan: Any = engine._loop.plans.get(PlanKey(rows=1, seqs=1, context=2, emit="token"))
    products = [op for op in plan.recording.ops if op.name in ("linear", "gated_linear")]
    return [backend.weights[op.ins[1].name].array for op in products]
