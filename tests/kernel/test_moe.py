"""Routing and the chosen experts' products against zllm.moe."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.kernel.bench import Bench, assert_close, random_blocks
from zllm.activation import GatedSpec
from zllm.backend.contract import PlanKey, Value
from zllm.errors import BackendError
from zllm.moe.experts import ExpertsSpec, experts, rows_product
from zllm.moe.routing import RouteSpec, route, route_by_token
from zllm.quant import formats

pytestmark = pytest.mark.vulkan

# Of the largest result. Measured: at most 5e-7. Seeded faults seen to fail: weights of another
# slot, biases outside the sum, up rows not clamped, the second best of a group left out.
TOLERANCE = 3e-6

ROUTES = {
    "softmax": (RouteSpec("softmax", 2), 7, False),
    "softmax-normalised": (RouteSpec("softmax", 8, True), 130, False),
    "chosen": (RouteSpec("softmax_of_chosen", 4), 32, False),
    "chosen-one": (RouteSpec("softmax_of_chosen", 1), 1, False),
    "sigmoid-groups": (RouteSpec("sigmoid", 6, True, 2.5, 8, 3), 64, True),
    "groups-of-one": (RouteSpec("sigmoid", 3, True, 1.5, 12, 5), 12, True),
    "sigmoid": (RouteSpec("sigmoid", 5, False, 0.5), 300, True),
    "sqrt_softplus": (RouteSpec("sqrt_softplus", 6, True, 1.5), 40, True),
}


@pytest.mark.parametrize("case", ROUTES.values(), ids=ROUTES)
@pytest.mark.parametrize("rows", [1, 9])
def test_route(
    bench: Bench, rng: np.random.Generator, case: tuple[RouteSpec, int, bool], rows: int
) -> None:
    spec, count, biased = case
    logits = (rng.standard_normal((rows, count)) * 4).astype(np.float32)
    logits[-1] -= np.float32(15)  # a softplus near nothing
    bias = rng.standard_normal(count).astype(np.float32) if biased else None
    outs = bench.parts(rows, (spec.top_k, spec.top_k))
    aside = None if bias is None else bench.vector(bias)
    bench.run("route", (bench.input(logits, offset=3, gap=2), aside), outs, spec)

    check_routed(bench, outs, route(logits, spec, bias=bias))


def test_equal_scores_choose_the_lower_expert(bench: Bench) -> None:
    """All equal, two levels, and groups whose sums are equal."""
    logits = np.zeros((3, 24), np.float32)
    logits[1, 1::2] = 1
    logits[2, [5, 11, 17]] = 2
    for spec in (RouteSpec("sigmoid", 5), RouteSpec("sigmoid", 5, False, 1.0, 4, 2)):
        outs = bench.parts(3, (5, 5))
        bench.run("route", (bench.input(logits), None), outs, spec)

        check_routed(bench, outs, route(logits, spec))


def test_route_by_token(bench: Bench, rng: np.random.Generator) -> None:
    """A row each of a known token, and of the token that its lane carries."""
    spec = RouteSpec("sqrt_softplus", 3, True, 2.5)
    table = np.stack([rng.permutation(16)[:3] for _ in range(11)])
    logits = rng.standard_normal((2, 16)).astype(np.float32)
    bench.plan(PlanKey(2, 2, 64, "token"), token=[10, -1], seq=[0, 1], lane=[0, 2])
    bench.carry("token", np.array([1, 2, 7, 3, 0], np.int32))
    w = bench.vector(table.astype(np.float32).reshape(-1))
    outs = bench.parts(2, (3, 3))
    bench.run("route_by_token", (bench.input(logits), w), outs, spec)

    chosen = table[[10, 7]].astype(np.int32)
    check_routed(bench, outs, route_by_token(logits, chosen, spec))


def check_routed(
    bench: Bench,
    outs: tuple[Value, ...],
    expected: tuple[NDArray[np.int32], NDArray[np.float32]],
) -> None:
    assert bench.untouched(outs)
    assert bench.values(outs[0]).view(np.int32).tolist() == expected[0].tolist()
    assert_close(bench.values(outs[1]), expected[1], TOLERANCE)


SILU = GatedSpec("silu")
# format, D, F, experts, chosen, tokens, activation, interleaved, biases
EXPERTS: dict[str, tuple[Any, ...]] = {
    "f32-decode": ("f32", 40, 24, 5, 2, 1, SILU, False, False),
    "f32-ragged": ("f32", 43, 19, 5, 3, 3, GatedSpec("gelu_tanh"), False, True),
    "f16-clamped": ("f16", 72, 40, 4, 4, 2, GatedSpec("swiglu_oai", 1.5), True, True),
    "bf16-prefill": ("bf16", 24, 56, 9, 2, 37, GatedSpec("silu", 2.0), False, False),
    "q4_0-decode": ("q4_0", 96, 64, 3, 1, 2, SILU, True, False),
    "q4_1-decode": ("q4_1", 96, 288, 3, 2, 1, SILU, False, True),
    "q8_0-prefill": ("q8_0", 64, 96, 6, 3, 9, SILU, False, False),
    "q6_k-decode": ("q6_k", 256, 256, 2, 2, 1, SILU, False, False),
}


@pytest.mark.parametrize("case", EXPERTS.values(), ids=EXPERTS)
def test_experts(bench: Bench, rng: np.random.Generator, case: tuple[Any, ...]) -> None:
    format, width, inner, count, chosen, tokens, activation, interleaved, biased = case
    spec = ExpertsSpec(count, inner, activation, interleaved)
    gate_up = random_blocks(rng, format, 2 * count * inner, width)
    down = random_blocks(rng, format, count * width, inner)
    x = rng.standard_normal((tokens, width)).astype(np.float32)
    ids, weights = some_routes(rng, tokens, count, chosen)
    biases = None
    if biased:
        biases = tuple(rng.standard_normal(len(w)).astype(np.float32) for w in (gate_up, down))
    bench.plan(PlanKey(tokens, 1, 64, "token"))
    out = bench.output(tokens, width, gap=2)
    run_experts(bench, x, (ids, weights), (format, gate_up, down), spec, out, biases)

    assert bench.untouched([out])
    expected = experts(
        x,
        (ids, weights),
        rows_product(formats.decode(format, gate_up, width)),
        rows_product(formats.decode(format, down, inner)),
        spec,
        biases=biases,  # type: ignore[arg-type]
    )
    assert_close(bench.values(out), expected, 2 * TOLERANCE)


def test_padding_rows_are_skipped(bench: Bench, rng: np.random.Generator) -> None:
    """Rows from valid_rows on keep what they held."""
    spec = ExpertsSpec(4, 16, SILU)
    gate_up, down = random_blocks(rng, "f32", 128, 24), random_blocks(rng, "f32", 96, 16)
    x = rng.standard_normal((5, 24)).astype(np.float32)
    ids, weights = some_routes(rng, 5, 4, 2)
    bench.plan(PlanKey(5, 1, 64, "token"), valid_rows=[3])
    out = bench.output(5, 24)
    run_experts(bench, x, (ids, weights), ("f32", gate_up, down), spec, out)

    first, second = (rows_product(w.view(np.float32)) for w in (gate_up, down))
    expected = experts(x[:3], (ids[:3], weights[:3]), first, second, spec)
    assert_close(bench.values(out)[:3], expected, 2 * TOLERANCE)
    assert np.isnan(bench.values(out)[3:]).all()


def test_experts_in_several_banks_are_refused(plain_bench: Bench, rng: np.random.Generator) -> None:
    rows = random_blocks(rng, "f32", 32, 8)
    w = plain_bench.matrix(("f32", rows[:16]), ("f32", rows[16:]), columns=8)
    routed = plain_bench.parts(1, (1, 1))
    x, out = plain_bench.input(np.zeros((1, 8), np.float32)), plain_bench.output(1, 8)
    with pytest.raises(BackendError, match="experts lie in 2 buffers"):
        plain_bench.run("experts", (x, *routed, w, w, None, None), (out,), ExpertsSpec(2, 8, SILU))


def some_routes(
    rng: np.random.Generator, tokens: int, count: int, chosen: int
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    ids = np.stack([np.sort(rng.permutation(count)[:chosen]) for _ in range(tokens)])
    return ids.astype(np.int32), rng.random((tokens, chosen), np.float32) + np.float32(0.1)


def run_experts(
    bench: Bench,
    x: NDArray[np.float32],
    routed: tuple[NDArray[np.int32], NDArray[np.float32]],
    matrices: tuple[str, NDArray[np.uint8], NDArray[np.uint8]],
    spec: ExpertsSpec,
    out: Value,
    biases: Any = None,
) -> None:
    format, gate_up, down = matrices
    ids, weights = routed
    tokens, chosen = ids.shape
    parts = bench.parts(tokens, (chosen, chosen))
    bench.fill(parts, np.concatenate([ids.view(np.float32), weights], axis=1))
    names = ("gate_up.bias", "down.bias")
    vectors = (None, None) if biases is None else map(bench.vector, biases, names)
    w = bench.matrix((format, gate_up), columns=x.shape[1])
    v = bench.matrix((format, down), columns=spec.width)
    bench.run("experts", (bench.input(x), *parts, w, v, *vectors), (out,), spec)
