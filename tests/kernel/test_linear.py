"""Matrix products in every format, shape of kernel and size, against x·wᵀ in f64."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.kernel.bench import Bench, assert_close, random_blocks
from zllm.activation import GatedSpec, gated
from zllm.backend.webgpu import product
from zllm.backend.webgpu.product import NormedSpec
from zllm.backend.webgpu.product_pairs import CODES
from zllm.backend.webgpu.tuning import Choice, Few, Tuning
from zllm.linear import LinearSpec
from zllm.norm import RmsNormSpec, rms_norm
from zllm.quant import formats

pytestmark = pytest.mark.vulkan

# Of the largest result. Measured: at most 4e-7, with the norm 7e-7. Seeded faults seen to fail: x
# of another token, bias or residual of another row.
TOLERANCE = 3e-6

# format, columns, matrix rows, tokens
SHAPES = {
    "q4_1-decode": ("q4_1", 96, 103, 1),
    "q4_0-decode": ("q4_0", 96, 13, 1),
    "q8_0-decode": ("q8_0", 96, 13, 2),
    "q6_k-decode": ("q6_k", 256, 13, 1),
    "f16-decode": ("f16", 72, 101, 3),
    "bf16-ragged": ("bf16", 43, 9, 1),
    "f32-ragged": ("f32", 43, 70, 5),
    "q4_1-prefill": ("q4_1", 96, 103, 37),
    "q8_0-prefill": ("q8_0", 160, 70, 9),
    "q4_0-prefill": ("q4_0", 96, 70, 9),
    "q6_k-prefill": ("q6_k", 256, 5, 33),
    "f32-prefill": ("f32", 44, 103, 13),
    # More columns than the few-token kernel stages at once, and more tokens than a wide tile has.
    "f16-chunks": ("f16", 4200, 9, 1),
    "q4_0-chunks": ("q4_0", 544, 35, 7),
    "q5_1-chunks": ("q5_1", 2080, 6, 2),
    "q4_1-wide": ("q4_1", 96, 135, 130),
    "f16-wide": ("f16", 43, 70, 67),
}


@pytest.fixture
def bench(bench: Bench) -> Bench:
    """Without product_pairs, which rounds x: see test_product_pairs."""
    bench.info = replace(bench.info, tuning=Tuning(pair_tokens=0))
    return bench


GATES = [GatedSpec("silu"), GatedSpec("gelu_tanh"), GatedSpec("swiglu_oai", limit=7.0)]


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_linear(bench: Bench, rng: np.random.Generator, shape: tuple[str, int, int, int]) -> None:
    format, columns, rows, tokens = shape
    encoded = random_blocks(rng, format, rows, columns)
    x = rng.standard_normal((tokens, columns)).astype(np.float32)
    out = bench.output(tokens, rows, gap=2)
    w = bench.matrix((format, encoded), columns=columns)
    bench.run("linear", (bench.input(x), w, None, None), (out,))

    assert bench.untouched([out])
    weights = formats.decode(format, encoded, columns).astype(np.float64)
    assert_close(bench.values(out), (x @ weights.T).astype(np.float32), TOLERANCE)


@pytest.mark.parametrize("tokens", [1, 11])
def test_bias_residual_parts_banks_and_views(
    bench: Bench, rng: np.random.Generator, tokens: int
) -> None:
    """q, k and v joined: two banks of different formats, three parts, all views displaced.

    Seeded faults seen to fail: the factor left out, or applied to the residual.
    """
    columns, widths = 64, (48, 16, 16)
    banks = [("q4_1", random_blocks(rng, "q4_1", 48, columns))]
    banks += [("q8_0", random_blocks(rng, "q8_0", 32, columns))]
    x = rng.standard_normal((tokens, columns)).astype(np.float32)
    bias = rng.standard_normal(80).astype(np.float32)
    residual = rng.standard_normal((tokens, 80)).astype(np.float32)
    outs = bench.parts(tokens, widths)
    w = bench.matrix(*banks, columns=columns)
    operands = (
        bench.input(x, offset=3, gap=2),
        w,
        bench.vector(bias),
        bench.input(residual, gap=1),
    )
    bench.run("linear", operands, outs, LinearSpec(0.3))

    assert bench.untouched(outs)
    weights = np.concatenate([formats.decode(f, rows, columns) for f, rows in banks])
    expected = (0.3 * (x @ weights.astype(np.float64).T + bias) + residual).astype(np.float32)
    assert_close(np.concatenate([bench.values(out) for out in outs], axis=1), expected, TOLERANCE)


@pytest.mark.parametrize(("tokens", "columns"), [(1, 96), (11, 96), (1, 4160), (3, 64), (70, 96)])
def test_norm_linear(bench: Bench, rng: np.random.Generator, tokens: int, columns: int) -> None:
    """rms_norm folded in. Seeded faults seen to fail: eps 1e-5, squares of another token,
    no offset.
    """
    encoded = random_blocks(rng, "q4_1", 30, columns)
    x = rng.standard_normal((tokens, columns)).astype(np.float32) * np.float32(0.1)
    x *= np.arange(1, tokens + 1, dtype=np.float32)[:, None]
    norm = rng.standard_normal(columns).astype(np.float32)
    out = bench.output(tokens, 30)
    w = bench.matrix(("q4_1", encoded), columns=columns)
    spec = RmsNormSpec(1e-2, offset=1.0)
    operands = (bench.input(x), bench.vector(norm), w, None, None)
    bench.run("norm_linear", operands, (out,), NormedSpec(spec, LinearSpec(0.5)))

    weights = formats.decode("q4_1", encoded, columns)
    expected = np.float32(0.5) * (rms_norm(x, norm, spec) @ weights.T)
    assert_close(bench.values(out), expected, TOLERANCE)


@pytest.mark.parametrize("spec", GATES, ids=lambda spec: spec.activation)
@pytest.mark.parametrize("banks", [1, 2])
@pytest.mark.parametrize("tokens", [1, 5, 11, 66])
def test_gated_linear(
    bench: Bench, rng: np.random.Generator, tokens: int, banks: int, spec: GatedSpec
) -> None:
    """Two banks are not fused. Gates reach below -80, where e^-z leaves f32."""
    width = 35
    encoded = random_blocks(rng, "q4_1", 2 * width, 96)
    x = rng.standard_normal((tokens, 96)).astype(np.float32) * np.float32(20)
    bias = rng.standard_normal(2 * width).astype(np.float32)
    out = bench.output(tokens, width, gap=3)
    if banks == 1:
        w = bench.joined("q4_1", encoded, (width, width), 96)
    else:
        w = bench.matrix(("q4_1", encoded[:width]), ("q4_1", encoded[width:]), columns=96)
    operands = (bench.input(x), w, bench.vector(bias))
    bench.run("gated_linear", operands, (out,), spec)

    assert bench.untouched([out])
    both = (x @ formats.decode("q4_1", encoded, 96).T + bias).astype(np.float32)
    assert both[:, :width].min() < -80
    with np.errstate(over="ignore"):
        expected = gated(both[:, :width], both[:, width:], spec)
    # Each result is a product of two. Measured: 1.2e-5, for the largest of many tokens.
    assert_close(bench.values(out), expected, 2e-5)


def test_norm_gated_linear(bench: Bench, rng: np.random.Generator) -> None:
    width, tokens = 21, 10
    encoded = random_blocks(rng, "f16", 2 * width, 40)
    x = rng.standard_normal((tokens, 40)).astype(np.float32)
    norm = rng.standard_normal(40).astype(np.float32)
    out = bench.output(tokens, width)
    w = bench.joined("f16", encoded, (width, width), 40)
    spec = NormedSpec(RmsNormSpec(1e-2), GatedSpec("silu"))
    bench.run("norm_gated_linear", (bench.input(x), bench.vector(norm), w, None), (out,), spec)

    both = rms_norm(x, norm, RmsNormSpec(1e-2)) @ formats.decode("f16", encoded, 40).T
    expected = gated(both[:, :width], both[:, width:], GatedSpec("silu"))
    assert_close(bench.values(out), expected, 2 * TOLERANCE)


@pytest.mark.parametrize("few", [Few(32, 2, 4), Few(256, 8, 8), Few(64, 4, 64)])
def test_every_setting_computes_the_same(
    bench: Bench, rng: np.random.Generator, few: Few, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Settings that a search may find. Seeded fault seen to fail: sums of another team."""
    monkeypatch.setattr(product, "FULL_THREADS", 1)  # so small a matrix would get two rows a team
    monkeypatch.setattr(product, "LEAST_THREADS", 1)
    bench.info = replace(bench.info, tuning=Tuning((Choice("q8_0", 8, few),)))
    for tokens in (1, 6):
        encoded = random_blocks(rng, "q8_0", 42, 320)
        x = rng.standard_normal((tokens, 320)).astype(np.float32)
        norm = rng.standard_normal(320).astype(np.float32)
        out = bench.output(tokens, 21)
        w = bench.joined("q8_0", encoded, (21, 21), 320)
        spec = NormedSpec(RmsNormSpec(1e-2), GatedSpec("silu"))
        bench.run("norm_gated_linear", (bench.input(x), bench.vector(norm), w, None), (out,), spec)

        both = rms_norm(x, norm, RmsNormSpec(1e-2)) @ formats.decode("q8_0", encoded, 320).T
        expected = gated(both[:, :21], both[:, 21:], GatedSpec("silu"))
        assert_close(bench.values(out), expected, 2 * TOLERANCE)


@pytest.mark.parametrize("format", CODES)
@pytest.mark.parametrize("columns", [160, 4640])
def test_integers_of_x_are_as_exact_as_floats(
    bench: Bench,
    rng: np.random.Generator,
    format: str,
    columns: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One token in three planes of bytes; rows longer than a chunk; blocks of zeros, of one size,
    and with an outlier. Seeded faults seen to fail: largest integers of 127 · 65793, which rounding
    exceeds; a chunk that is not followed by the next.
    """
    monkeypatch.setattr(product, "LEAST_THREADS", 1)
    encoded = random_blocks(rng, format, 37, columns)
    x = rng.standard_normal((1, columns)).astype(np.float32)
    x[:, :32] = 0
    x[:, 32:64] = 1.7
    x[:, 64] = -3e4
    x[:, 96:] *= rng.uniform(0.5, 2, columns - 96).astype(np.float32)
    out = bench.output(1, 37)
    w = bench.matrix((format, encoded), columns=columns)
    bench.run("linear", (bench.input(x), w, None, None), (out,))

    weights = formats.decode(format, encoded, columns).astype(np.float64)
    assert_close(bench.values(out), (x @ weights.T).astype(np.float32), TOLERANCE)
