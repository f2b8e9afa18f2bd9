"""Routing and the chosen experts' products against zllm.moe."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.helpers.weights import tensor
from tests.kernel.bench import Bench, assert_close, random_blocks
from zllm.activation import GatedSpec
from zllm.backend.contract import Op, PlanKey, Value
from zllm.backend.webgpu.budget import scratch_bytes
from zllm.backend.webgpu.upload import upload_matrix
from zllm.errors import BackendError
from zllm.moe.experts import ExpertsSpec, experts, rows_product
from zllm.moe.routing import RouteSpec, route, route_by_token
from zllm.quant import formats

pytestmark = pytest.mark.vulkan

# Of the largest result. Measured: at most 5e-7. Seeded faults seen to fail: weights of another
# slot, biases outside the sum, up rows not clamped, the second best of a group left out, a tile
# that runs into the next expert's pairs, a bank that forgets what those before it left, another
# first expert of a dispatch's third bank.
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
    w = bench.vector(table.astype(np.float32))
    outs = bench.parts(2, (3, 3))
    bench.run("route_by_token", (bench.input(logits), w), outs, spec)

    chosen = table[[10, 7]].astype(np.int32)
    check_routed(bench, outs, route_by_token(logits, chosen, spec))


def test_a_table_that_names_experts_that_do_not_exist(
    bench: Bench, rng: np.random.Generator
) -> None:
    """They are left out, and what they leave empty weighs nothing. The oracle refuses the table."""
    spec = RouteSpec("sqrt_softplus", 3, True, 2.5)
    table = np.array([[1, 7, 16], [-3, 20, 999]], np.float32)
    logits = rng.standard_normal((3, 16)).astype(np.float32)
    bench.plan(PlanKey(3, 1, 64, "none"), token=[0, 1, 5], seq=[0, 0, 0])  # 5: beyond the table
    bench.carry("token", np.zeros(4, np.int32))
    w = bench.vector(table)
    outs = bench.parts(3, (3, 3))
    bench.run("route_by_token", (bench.input(logits), w), outs, spec)

    ids, weights = bench.values(outs[0]).view(np.int32), bench.values(outs[1])
    assert ids[0].tolist() == [1, 7, 0] and weights[0, 2] == 0
    _, expected = route_by_token(logits[:1], np.array([[1, 7]], np.int32), spec)
    assert_close(weights[:1, :2], expected, TOLERANCE)
    assert not weights[1:].any() and not ids[1:].any()


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
    # GPUs sort the pairs of these by expert: tiles of 4, 8 and 32 pairs.
    "q4_0-few": ("q4_0", 96, 64, 12, 4, 8, GatedSpec("swiglu_oai", 1.5), True, True),
    "f32-several": ("f32", 43, 19, 7, 2, 24, GatedSpec("gelu_tanh"), False, True),
    "f16-tiles": ("f16", 72, 40, 3, 2, 70, SILU, True, True),
    "many-experts": ("f32", 8, 4, 300, 8, 75, SILU, False, False),
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


@pytest.mark.parametrize("format", ["q4_k", "q8_0"])
def test_formats_in_several_banks(bench: Bench, rng: np.random.Generator, format: str) -> None:
    """Of every bank each function that reads it; rows of more than one chunk of x."""
    spec = ExpertsSpec(3, 256, SILU)
    gate_up = np.tile(random_blocks(rng, format, 96, 4352), (16, 1))
    down = random_blocks(rng, format, 3 * 4352, 256)
    x = rng.standard_normal((1, 4352)).astype(np.float32)
    ids, weights = some_routes(rng, 1, 3, 3)
    bench.plan(PlanKey(1, 1, 64, "token"))
    out = bench.output(1, 4352)
    cuts = ((512, 1024), (4352,))
    run_experts(bench, x, (ids, weights), (format, gate_up, down), spec, out, None, cuts)

    first, second = (
        rows_product(formats.decode(format, w, columns))
        for w, columns in ((gate_up, 4352), (down, 256))
    )
    assert_close(bench.values(out), experts(x, (ids, weights), first, second, spec), 1e-5)


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


# First rows of each matrix's banks but the first: experts 0 | 1 2 3 | 4 and 0 1 2 | 3 4, and one by
# one, which is more than a dispatch binds.
CUTS = {"few": ((24, 96), (48,)), "many": ((24, 48, 72, 96), (16, 32, 48, 64))}
CUT = [(2, "few"), (2, "many"), (1, "many")]


@pytest.mark.parametrize("tokens", [1, 5, 40])
@pytest.mark.parametrize("biased", [False, True], ids=["", "biases"])
@pytest.mark.parametrize(("chosen", "cuts"), CUT)
def test_experts_in_several_banks(
    bench: Bench,
    rng: np.random.Generator,
    tokens: int,
    biased: bool,
    chosen: int,
    cuts: str,
) -> None:
    """Each bank does the pairs of its own experts; rows may have none in the first."""
    spec = ExpertsSpec(5, 12, SILU)
    gate_up, down = (
        random_blocks(rng, "f32", rows, width) for rows, width in ((120, 16), (80, 12))
    )
    x = rng.standard_normal((tokens, 16)).astype(np.float32)
    ids, weights = some_routes(rng, tokens, 5, chosen)
    ids[0] = (3, 4)[:chosen]
    biases = None
    if biased:
        biases = tuple(rng.standard_normal(len(w)).astype(np.float32) for w in (gate_up, down))
    bench.plan(PlanKey(tokens, 1, 64, "token"))
    out = bench.output(tokens, 16, gap=1)
    run_experts(bench, x, (ids, weights), ("f32", gate_up, down), spec, out, biases, CUTS[cuts])

    assert bench.untouched([out])
    first, second = (rows_product(w.view(np.float32)) for w in (gate_up, down))
    expected = experts(x, (ids, weights), first, second, spec, biases=biases)  # type: ignore[arg-type]
    assert_close(bench.values(out), expected, 2 * TOLERANCE)


@pytest.mark.parametrize("tokens", [2, 30])
def test_experts_that_do_not_exist_add_nothing(
    bench: Bench, rng: np.random.Generator, tokens: int
) -> None:
    spec = ExpertsSpec(4, 16, SILU)
    gate_up, down = random_blocks(rng, "f32", 128, 24), random_blocks(rng, "f32", 96, 16)
    x = rng.standard_normal((tokens, 24)).astype(np.float32)
    ids, weights = some_routes(rng, tokens, 4, 2)
    named = ids.copy()
    named[1, 1], named[0] = -1, (4, 1 << 30)
    bench.plan(PlanKey(tokens, 1, 64, "token"))
    out = bench.output(tokens, 24)
    run_experts(bench, x, (named, weights), ("f32", gate_up, down), spec, out)

    first, second = (rows_product(w.view(np.float32)) for w in (gate_up, down))
    weights[1, 1], weights[0] = 0, 0
    expected = experts(x, (ids, weights), first, second, spec)
    assert_close(bench.values(out), expected, 2 * TOLERANCE)


def test_all_rows_choose_the_same_expert(bench: Bench, rng: np.random.Generator) -> None:
    spec = ExpertsSpec(20, 16, SILU)
    gate_up, down = random_blocks(rng, "f32", 640, 24), random_blocks(rng, "f32", 480, 16)
    x = rng.standard_normal((70, 24)).astype(np.float32)
    ids, weights = np.full((70, 1), 19, np.int32), np.ones((70, 1), np.float32)
    bench.plan(PlanKey(70, 1, 64, "token"))
    out = bench.output(70, 24)
    run_experts(bench, x, (ids, weights), ("f32", gate_up, down), spec, out)

    first, second = (rows_product(w.view(np.float32)) for w in (gate_up, down))
    assert_close(bench.values(out), experts(x, (ids, weights), first, second, spec), 2 * TOLERANCE)


@pytest.mark.parametrize("tokens", [1, 40])
def test_what_experts_leave_to_each_other_is_planned_for(
    bench: Bench, rng: np.random.Generator, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[int] = []
    real = bench.scratch

    def scratch(size_bytes: int) -> Any:
        taken.append(size_bytes)
        return real(size_bytes)

    monkeypatch.setattr(bench, "scratch", scratch)
    spec = ExpertsSpec(4, 16, SILU)
    gate_up, down = random_blocks(rng, "f32", 128, 24), random_blocks(rng, "f32", 96, 16)
    x = rng.standard_normal((tokens, 24)).astype(np.float32)
    bench.plan(PlanKey(tokens, 1, 64, "token"))
    out = bench.output(tokens, 24)
    routed = some_routes(rng, tokens, 4, 2)
    run_experts(bench, x, routed, ("f32", gate_up, down), spec, out)

    ins = (Value(0, (tokens, 24)), Value(1, (tokens, 2), "i32"))
    planned = scratch_bytes(Op("experts", ins, (out,), spec), bench.info)
    assert 0.6 * planned <= sum(taken) <= planned


def test_an_expert_in_two_banks_is_refused(plain_bench: Bench, rng: np.random.Generator) -> None:
    rows = random_blocks(rng, "f32", 32, 8)
    w = plain_bench.matrix(("f32", rows[:24]), ("f32", rows[24:]), columns=8)
    routed = plain_bench.parts(1, (1, 1))
    x, out = plain_bench.input(np.zeros((1, 8), np.float32)), plain_bench.output(1, 8)
    with pytest.raises(BackendError, match="rows of one expert lie in different buffers"):
        plain_bench.run("experts", (x, *routed, w, w, None, None), (out,), ExpertsSpec(2, 8, SILU))


def test_banks_are_cut_at_whole_experts(plain_bench: Bench, rng: np.random.Generator) -> None:
    """A device that binds 1000 bytes: 31 rows of 8 floats fit, 30 of them are three experts'."""
    device = plain_bench.device
    values = rng.standard_normal((70, 8)).astype(np.float32)
    parts = [tensor(values[first : first + 10]) for first in range(0, 70, 10)]
    small = replace(device.info, max_binding_bytes=1000)
    with mock.patch.object(device, "info", small):
        banks = upload_matrix(device, "experts", parts, 10)
        with pytest.raises(BackendError, match="32 rows of one expert are more than"):
            upload_matrix(device, "experts", parts, 32)

    assert [(bank.first_row, bank.rows) for bank in banks] == [(0, 30), (30, 30), (60, 10)]
    held = np.concatenate([plain_bench.read(bank.buffer).reshape(-1, 8) for bank in banks])
    np.testing.assert_array_equal(held, values)


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
    cuts: tuple[tuple[int, ...], tuple[int, ...]] = ((), ()),
) -> None:
    """cuts: the first rows of each matrix's banks but the first."""
    format, gate_up, down = matrices
    ids, weights = routed
    tokens, chosen = ids.shape
    parts = bench.parts(tokens, (chosen, chosen))
    bench.fill(parts, np.concatenate([ids.view(np.float32), weights], axis=1))
    names = ("gate_up.bias", "down.bias")
    vectors = (None, None) if biases is None else map(bench.vector, biases, names)
    parts_of = [
        [(format, rows) for rows in np.split(matrix, cut)]
        for matrix, cut in ((gate_up, cuts[0]), (down, cuts[1]))
    ]
    w = bench.matrix(*parts_of[0], columns=x.shape[1])
    v = bench.matrix(*parts_of[1], columns=spec.width)
    bench.run("experts", (bench.input(x), *parts, w, v, *vectors), (out,), spec)
