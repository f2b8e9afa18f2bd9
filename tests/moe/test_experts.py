"""Expert layers against a loop over tokens and choices in f64."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from zllm.activation import GatedSpec
from zllm.moe.experts import ExpertsSpec, experts, rows_product

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]

E, D, F = 5, 6, 4
SILU, CLAMPED = GatedSpec("silu"), GatedSpec("silu", limit=0.4)
OAI = GatedSpec("swiglu_oai", limit=0.5, alpha=1.3)


def gated(gate: F64, up: F64, spec: GatedSpec) -> F64:
    if spec.limit:
        gate, up = np.minimum(gate, spec.limit), np.clip(up, -spec.limit, spec.limit)
    if spec.activation == "swiglu_oai":
        return np.asarray(gate / (1 + np.exp(-spec.alpha * gate)) * (up + 1))
    return np.asarray(gate / (1 + np.exp(-gate)) * up)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("act", [SILU, CLAMPED, OAI], ids=["silu", "clamped", "oai"])
@pytest.mark.parametrize("tokens", [1, 9])
def test_equals_the_formula_in_f64(
    tokens: int, act: GatedSpec, interleaved: bool, biased: bool
) -> None:
    rng = np.random.default_rng(8)

    def random(*shape: int) -> F32:
        return rng.standard_normal(shape).astype(np.float32)

    x, gate_up, down = random(tokens, D), random(E * 2 * F, D), random(E * D, F)
    biases = (random(E * 2 * F), random(E * D)) if biased else None
    ids = np.array([sorted(rng.choice(E, 2, replace=False)) for _ in range(tokens)], np.int32)
    weights = random(tokens, 2)

    wanted = np.zeros((tokens, D))
    first, second = biases or (np.zeros(E * 2 * F), np.zeros(E * D))
    for t, choice in np.ndindex(tokens, 2):
        e = int(ids[t, choice])
        both = gate_up.reshape(E, 2 * F, D)[e].astype(np.float64) @ x[t]
        both += first.reshape(E, 2 * F)[e]
        gate, up = (both[::2], both[1::2]) if interleaved else (both[:F], both[F:])
        y = down.reshape(E, D, F)[e].astype(np.float64) @ gated(gate, up, act)
        wanted[t] += weights[t, choice] * (y + second.reshape(E, D)[e])

    spec = ExpertsSpec(E, F, act, interleaved)
    out = np.full((tokens, D), np.nan, np.float32)
    products = rows_product(gate_up), rows_product(down)
    found = experts(x, (ids, weights), *products, spec, biases=biases, out=out)
    assert found is out
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def test_only_the_rows_of_chosen_experts_are_read() -> None:
    asked: list[tuple[int, int, int]] = []

    def gate_up(x: F32, first: int, count: int) -> F32:
        asked.append((len(x), first, count))
        return np.ones((len(x), count), np.float32)

    def down(x: F32, first: int, count: int) -> F32:
        asked.append((len(x), first, count))
        return np.ones((len(x), count), np.float32)

    ids = np.array([[1, 3], [3, 4], [1, 3]], np.int32)
    routed = ids, np.ones(ids.shape, np.float32)
    experts(np.ones((3, D), np.float32), routed, gate_up, down, ExpertsSpec(E, F, SILU))
    assert asked[::2] == [(2, 1 * 2 * F, 2 * F), (3, 3 * 2 * F, 2 * F), (1, 4 * 2 * F, 2 * F)]
    assert asked[1::2] == [(2, 1 * D, D), (3, 3 * D, D), (1, 4 * D, D)]
