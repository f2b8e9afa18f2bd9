"""Ops that only move or combine rows: gated, add, soft_cap, last_rows, logits."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernel.bench import Bench, assert_close
from zllm.activation import GatedSpec, SoftCapSpec, gated, soft_cap
from zllm.backend.contract import PlanKey

pytestmark = pytest.mark.vulkan


@pytest.mark.parametrize("limit", [0.0, 7.0])
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh", "swiglu_oai"])
def test_gated(plain_bench: Bench, rng: np.random.Generator, activation: str, limit: float) -> None:
    """Seeded faults seen to fail: up clamped on one side only, alpha 1, tanh of the bare gate."""
    spec = GatedSpec(activation, limit)
    both = rng.standard_normal((5, 2, 9)).astype(np.float32) * np.float32(50)
    gate, up = both[:, 0].copy(), both[:, 1].copy()
    assert gate.min() < -90  # e^-z leaves f32
    bench = plain_bench
    out = bench.output(5, 9, gap=2)
    operands = (bench.input(gate, offset=1, gap=9), bench.input(up, offset=2))
    bench.run("gated", operands, (out,), spec)

    assert bench.untouched([out])
    # Measured: 1e-7.
    with np.errstate(over="ignore"):
        expected = gated(gate, up, spec)
    assert_close(bench.values(out), expected, 1e-6)


def test_add(plain_bench: Bench, rng: np.random.Generator) -> None:
    x, y = rng.standard_normal((2, 7, 11)).astype(np.float32)
    bench = plain_bench
    out = bench.output(7, 11, gap=2)
    bench.run("add", (bench.input(x, gap=3), bench.input(y, offset=1, gap=1)), (out,))

    assert bench.untouched([out])
    np.testing.assert_array_equal(bench.values(out), x + y)


def test_soft_cap(plain_bench: Bench, rng: np.random.Generator) -> None:
    """Far beyond the cap too, where e^2z leaves f32. Measured: 2e-7."""
    x = (rng.standard_normal((3, 103)) * 10.0 ** np.arange(-1, 5, 6 / 103)).astype(np.float32)
    bench = plain_bench
    out, spec = bench.output(3, 103, gap=2), SoftCapSpec(30.0)
    bench.run("soft_cap", (bench.input(x, offset=2, gap=3),), (out,), spec)

    assert bench.untouched([out])
    assert_close(bench.values(out), soft_cap(x, spec), 1e-6)


def test_last_rows(plain_bench: Bench, rng: np.random.Generator) -> None:
    x = rng.standard_normal((7, 11)).astype(np.float32)
    bench = plain_bench
    bench.plan(PlanKey(7, 3, 64, "token"), last_row=[2, 6, 0])
    out = bench.output(3, 11)
    bench.run("last_rows", (bench.input(x, gap=1),), (out,))

    assert bench.untouched([out])
    np.testing.assert_array_equal(bench.values(out), x[[2, 6, 0]])


def test_logits_fill_the_result(plain_bench: Bench, rng: np.random.Generator) -> None:
    x = rng.standard_normal((3, 103)).astype(np.float32)
    bench = plain_bench
    bench.plan(PlanKey(3, 1, 64, "logits"))
    bench.carry("result", np.full((3, 103), np.nan, np.float32))
    bench.run("logits", (bench.input(x, gap=5),))

    np.testing.assert_array_equal(bench.read(bench.result).reshape(3, 103), x)
