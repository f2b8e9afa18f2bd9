"""Hyper-connections against zllm.hyper_connection."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernel.bench import F32, Bench, assert_close
from zllm import hyper_connection
from zllm.backend.contract import PlanKey, Weight
from zllm.backend.webgpu import hyper
from zllm.hyper_connection import HyperSpec

pytestmark = pytest.mark.vulkan

TOLERANCE = 3e-6  # of the largest result

# rows, streams, width, iterations
SHAPES = {
    "decode": (1, 4, 1024, 20),
    "one-iteration": (3, 4, 48, 1),
    "odd": (9, 3, 37, 20),
    "two": (2, 2, 130, 5),
    "one": (5, 1, 7, 3),
    "many-rows": (67, 4, 72, 20),
}


def streams(rng: np.random.Generator, rows: int, n: int, width: int) -> F32:
    x = rng.standard_normal((rows, n, width)).astype(np.float32)
    return np.asarray(x * np.linspace(0.2, 3, rows, dtype=np.float32)[:, None, None])


def weights(
    bench: Bench, rng: np.random.Generator, outputs: int, columns: int, scales: int
) -> tuple[tuple[F32, F32, F32], tuple[Weight, Weight, Weight]]:
    fn = rng.standard_normal((outputs, columns)).astype(np.float32) * np.float32(columns**-0.5)
    base = rng.standard_normal(outputs).astype(np.float32)
    scale = rng.standard_normal(scales).astype(np.float32) * 2
    fn_rows = bench.matrix(("f32", fn.view(np.uint8)), columns=columns)
    resident = fn_rows, bench.vector(base, "base"), bench.vector(scale, "scale")
    return (fn, base, scale), resident


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_split(bench: Bench, rng: np.random.Generator, shape: tuple[int, int, int, int]) -> None:
    """Seeded faults seen to fail: the mix transposed, an eps left out, a step of Sinkhorn less."""
    rows, n, width, iterations = shape
    spec = HyperSpec(n, 1e-2, 1e-2, iterations)
    x = streams(rng, rows, n, width)
    held, resident = weights(bench, rng, (2 + n) * n, n * width, 3)
    outs = bench.parts(rows, (width, n, n * n))
    flat = bench.input(x.reshape(rows, -1), offset=3, gap=2)
    bench.plan(PlanKey(rows, 1, 64, "token"))
    bench.run("hc_split", (flat, *resident), outs, spec)

    assert bench.untouched(outs)
    h, post, comb = hyper_connection.split(x, *held, spec)
    assert_close(bench.values(outs[0]), h, TOLERANCE)
    assert_close(bench.values(outs[1]), post, TOLERANCE)
    assert_close(bench.values(outs[2]), comb.reshape(rows, -1), TOLERANCE)


def test_a_mix_of_extremes(bench: Bench, rng: np.random.Generator) -> None:
    """Logits far apart: what the softmax rounds to nothing lives by eps alone."""
    spec = HyperSpec(4, 1e-6, 1e-6, 20)
    x = streams(rng, 2, 4, 8)
    held, resident = weights(bench, rng, 24, 32, 3)
    held[2][:] = 200, -200, 60
    resident = *resident[:2], bench.vector(held[2], "scale")
    outs = bench.parts(2, (8, 4, 16))
    bench.run("hc_split", (bench.input(x.reshape(2, -1)), *resident), outs, spec)

    for out, expected in zip(outs, hyper_connection.split(x, *held, spec), strict=True):
        assert_close(bench.values(out), expected.reshape(2, -1), 1e-4)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_head(bench: Bench, rng: np.random.Generator, shape: tuple[int, int, int, int]) -> None:
    """Seeded fault seen to fail: the gate without eps."""
    rows, n, width, _ = shape
    spec = HyperSpec(n, 1e-2, 1e-2, 1)
    x = streams(rng, rows, n, width)
    held, resident = weights(bench, rng, n, n * width, 1)
    out = bench.output(rows, width, gap=1)
    bench.run("hc_head", (bench.input(x.reshape(rows, -1), gap=3), *resident), (out,), spec)

    assert bench.untouched([out])
    assert_close(bench.values(out), hyper_connection.head(x, *held, spec), TOLERANCE)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_join(
    plain_bench: Bench, rng: np.random.Generator, shape: tuple[int, int, int, int]
) -> None:
    """Seeded fault seen to fail: the mix not transposed."""
    rows, n, width, _ = shape
    bench, x = plain_bench, streams(rng, rows, n, width)
    f = rng.standard_normal((rows, width)).astype(np.float32)
    post = rng.standard_normal((rows, n)).astype(np.float32)
    comb = rng.standard_normal((rows, n, n)).astype(np.float32)
    given = bench.parts(rows, (n, n * n))
    bench.fill(given, np.concatenate([post, comb.reshape(rows, -1)], axis=1))
    out = bench.output(rows, n * width, gap=3)
    flat = bench.input(x.reshape(rows, -1), offset=1, gap=2)
    bench.run("hc_join", (bench.input(f, offset=5, gap=1), flat, *given), (out,))

    assert bench.untouched([out])
    expected = hyper_connection.join(f, x, post, comb).reshape(rows, -1)
    assert_close(bench.values(out), expected, TOLERANCE)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_start_and_mean(
    plain_bench: Bench, rng: np.random.Generator, shape: tuple[int, int, int, int]
) -> None:
    """Seeded faults seen to fail: streams side by side in another order, a sum for the mean."""
    rows, n, width, _ = shape
    bench, spec = plain_bench, HyperSpec(n, 0, 0, 1)
    x = rng.standard_normal((rows, width)).astype(np.float32)
    started = bench.output(rows, n * width, gap=2)
    bench.run("hc_start", (bench.input(x, offset=2, gap=1),), (started,), spec)

    assert bench.untouched([started])
    assert np.array_equal(bench.values(started), np.tile(x, n))

    y, out = streams(rng, rows, n, width), bench.output(rows, width, gap=2)
    bench.run("hc_mean", (bench.input(y.reshape(rows, -1), gap=1),), (out,), spec)

    assert bench.untouched([out])
    assert_close(bench.values(out), y.mean(axis=1), TOLERANCE)


def test_long_rows_are_dealt_to_many_workgroups(bench: Bench, rng: np.random.Generator) -> None:
    """Splits that do not divide the columns; few workgroups where there are many rows."""
    spec = HyperSpec(4, 1e-6, 1e-6, 20)
    for rows, width in ((1, 2111), (2, 600)):
        x = streams(rng, rows, 4, width)
        held, resident = weights(bench, rng, 24, 4 * width, 3)
        outs = bench.parts(rows, (width, 4, 16))
        bench.run("hc_split", (bench.input(x.reshape(rows, -1)), *resident), outs, spec)

        for out, expected in zip(outs, hyper_connection.split(x, *held, spec), strict=True):
            assert_close(bench.values(out), expected.reshape(rows, -1), TOLERANCE)


def test_more_streams_than_the_kernels_hold_are_refused(plain_bench: Bench) -> None:
    from zllm.backend.contract import Op

    op = Op("hc_split", (), (), HyperSpec(5, 0, 0, 1))
    assert "5 residual streams" in str(hyper.missing_hyper(op, plain_bench.info))
