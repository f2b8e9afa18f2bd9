"""How fast a backend multiplies, in a moment: what decides between two of them."""

from __future__ import annotations

import time

import numpy as np

from zllm.backend.contract import Backend, Group, Op, PlanKey, Recording, StepLayout, Value
from zllm.backend.selftest.random_weight import dense, random_weight

ROWS, COLUMNS, PRODUCTS = 2048, 1024, 8
RUNS = 3
FORMAT = "q4_0"


async def seconds_per_weight(backend: Backend) -> float:
    """Of products of one row with matrices of four bits, the best of a few rounds.

    A round takes tens of milliseconds on a CPU. The backend keeps what was loaded.
    """
    rng = np.random.default_rng(0)
    row = dense(rng.standard_normal((1, COLUMNS)))
    table = backend.load("speed: row", [row], uses=frozenset({"embed"}))
    stored = random_weight(rng, FORMAT, (ROWS, COLUMNS))
    matrix = backend.load("speed: matrix", [stored], uses=frozenset({"linear"}))
    key = PlanKey(1, 1, 1, "logits")
    layout = StepLayout(key, [Group("full", 16, 2)])
    x = Value(0, (1, COLUMNS))
    outs = [Value(1 + at, (1, ROWS)) for at in range(PRODUCTS)]
    products = [Op("linear", (x, matrix, None, None), (out,), None) for out in outs]
    ops = (Op("embed", (table,), (x,), None), *products, Op("logits", (outs[-1],), ()))
    plan = backend.compile(Recording(key, layout, ops))
    words = np.zeros(layout.words, np.int32)
    for name in ("valid_rows", "valid_seqs", "length"):
        words[layout.offset[name]] = 1
    best = np.inf
    for _ in range(1 + RUNS):  # the first one warms up
        began = time.perf_counter()
        await plan.submit(words)
        best = min(best, time.perf_counter() - began)
    return float(best) / (PRODUCTS * ROWS * COLUMNS)
