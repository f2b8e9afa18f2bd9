from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.helpers.llama_gguf import llama3_factors
from zllm.model_spec.llama import LlamaConfig
from zllm.model_spec.rope import Rope
from zllm.rope import RopeSpec, frequencies, rotate, table


def plain(rotated: int, theta: float) -> NDArray[np.float64]:
    return theta ** -(np.arange(0, rotated, 2, dtype=np.float64) / rotated)


@pytest.mark.parametrize(("rotated", "theta"), [(2, 1e4), (8, 1e5), (64, 1e4), (128, 5e5)])
def test_frequencies_equal_the_formula(rotated: int, theta: float) -> None:
    result = frequencies(RopeSpec(rotated, theta))
    assert result.dtype == np.float32 and result.shape == (rotated // 2,)
    np.testing.assert_allclose(result, plain(rotated, theta), rtol=2e-6)


def test_linear_scaling_divides() -> None:
    scaled = frequencies(RopeSpec(16, 1e4, "linear", factor=4.0))
    np.testing.assert_allclose(scaled, plain(16, 1e4) / 4, rtol=2e-6)


LLAMA3: list[dict[str, Any]] = [
    {"rotated": 8, "theta": 100.0, "factor": 8.0, "original_context": 32},
    {"rotated": 64, "theta": 5e5, "factor": 32.0, "original_context": 8192},
    {"rotated": 128, "theta": 1e4, "factor": 2.0, "original_context": 512, "high": 8.0},
]


@pytest.mark.parametrize("given", LLAMA3, ids=lambda given: f"r{given['rotated']}")
def test_scaling_by_wavelength_equals_llama_cpp(given: dict[str, Any]) -> None:
    """llama.cpp's converter writes the same scaling as one divisor per pair."""
    high = given.get("high", 4.0)
    rotated, theta, factor = given["rotated"], given["theta"], given["factor"]
    context = given["original_context"]
    spec = RopeSpec(rotated, theta, "by_wavelength", factor, 1.0, high, context)
    rope = Rope(theta, "llama3", factor, 1.0, high, context)
    config = LlamaConfig(1, rotated, 1, 1, 1, 1, rotated, 1, 1e-5, rope)
    divisors = llama3_factors(config).astype(np.float64)
    assert len(set(divisors)) > 2, "kept, blended and stretched pairs all occur"
    np.testing.assert_allclose(frequencies(spec), plain(rotated, theta) / divisors, rtol=3e-6)
    stored = RopeSpec(rotated, theta, divisors=tuple(divisors))
    np.testing.assert_allclose(frequencies(stored), frequencies(spec), rtol=3e-6)


def test_table_keeps_the_angle_at_long_positions() -> None:
    spec = RopeSpec(8, 1e4)
    rows = table(spec, 40_000)
    assert rows.shape == (40_000, 8) and rows.dtype == np.float32
    angle = 39_999 * frequencies(spec).astype(np.float64)
    np.testing.assert_allclose(rows[-1], [*np.cos(angle), *np.sin(angle)], atol=1e-7)
    assert np.array_equal(rows[0], [1, 1, 1, 1, 0, 0, 0, 0])


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("heads", "size", "rotated"), [(1, 2, 2), (3, 8, 8), (5, 10, 6)])
def test_rotate_turns_each_pair_as_a_complex_number(
    heads: int, size: int, rotated: int, interleaved: bool
) -> None:
    rng = np.random.default_rng(3)
    x = rng.standard_normal((4, heads, size)).astype(np.float32)
    before = x.copy()
    angles = rng.uniform(-4, 4, (4, rotated // 2))
    cos_sin = np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    result = rotate(x, cos_sin, interleaved=interleaved)
    assert np.array_equal(x, before), "the input is left alone"
    assert np.array_equal(result[..., rotated:], x[..., rotated:]), "the rest is kept"
    for pair in range(rotated // 2):
        a, b = (2 * pair, 2 * pair + 1) if interleaved else (pair, pair + rotated // 2)
        turned = (x[..., a] + 1j * x[..., b].astype(np.float64)) * np.exp(1j * angles[:, [pair]])
        np.testing.assert_allclose(result[..., a], turned.real, atol=2e-6)
        np.testing.assert_allclose(result[..., b], turned.imag, atol=2e-6)


def test_rotate_writes_into_out_over_a_view() -> None:
    """Columns of a joined product are strided."""
    rng = np.random.default_rng(4)
    joined = rng.standard_normal((3, 20)).astype(np.float32)
    cos_sin = table(RopeSpec(4, 100.0), 3)
    view = joined[:, 4:12].reshape(3, 2, 4)
    out = np.empty((3, 2, 4), np.float32)
    assert rotate(view, cos_sin, interleaved=False, out=out) is out
    assert np.array_equal(out, rotate(view.copy(), cos_sin, interleaved=False))


def test_scores_depend_on_the_distance_alone() -> None:
    rng = np.random.default_rng(5)
    q, k = rng.standard_normal((2, 1, 1, 8)).astype(np.float32)
    rows = table(RopeSpec(8, 1e4), 128)

    def score(at: int, other: int) -> float:
        turned_q = rotate(q, rows[at : at + 1], interleaved=False)
        return float(np.sum(turned_q * rotate(k, rows[other : other + 1], interleaved=False)))

    assert score(7, 3) == pytest.approx(score(104, 100), abs=1e-5)
    assert abs(score(7, 3) - score(7, 4)) > 1e-3


# Bounds by hand, r = 64, theta = 1e4, 4096 positions: 64·ln(4096/(2π·32)) / (2·ln 1e4) = 10.47,
# 64·ln(4096/2π) / (2·ln 1e4) = 22.51.
@pytest.mark.parametrize(
    ("truncate", "low", "high"),
    [(True, 10, 23), (False, 10.47224, 22.51344)],
    ids=["pairs", "exact"],
)
def test_yarn_keeps_fast_pairs_and_stretches_slow_ones(
    truncate: bool, low: float, high: float
) -> None:
    spec = RopeSpec(64, 1e4, "yarn", 16.0, original_context=4096, truncate=truncate)
    kept = np.clip((high - np.arange(32)) / (high - low), 0, 1)
    np.testing.assert_allclose(
        frequencies(spec), plain(64, 1e4) * (kept + (1 - kept) / 16), rtol=2e-5
    )


def test_yarn_bounds_stay_within_the_pairs() -> None:
    """So short an original context that even the fastest pair is stretched."""
    spec = RopeSpec(8, 1e4, "yarn", 4.0, original_context=6, beta_slow=0.5, beta_fast=1.0)
    result = frequencies(spec)
    np.testing.assert_allclose(result[1:], plain(8, 1e4)[1:] / 4, rtol=2e-6)
    np.testing.assert_allclose(result[0], 1.0, rtol=2e-6)


def test_attention_factor_multiplies_cos_and_sin() -> None:
    spec = RopeSpec(8, 1e4, attention_factor=1.25)
    np.testing.assert_allclose(table(spec, 9), 1.25 * table(RopeSpec(8, 1e4), 9), rtol=2e-7)


def test_long_divisors_add_the_rows_of_long_sequences() -> None:
    short, long = (1.0, 1.0, 2.0, 2.0), (1.5, 3.0, 4.5, 6.0)
    spec = RopeSpec(8, 100.0, divisors=short, long_divisors=long, attention_factor=1.5)
    rows = table(spec, 20)
    assert rows.shape == (40, 8)
    for first, divisors in ((0, short), (20, long)):
        only = RopeSpec(8, 100.0, divisors=divisors, attention_factor=1.5)
        assert np.array_equal(rows[first : first + 20], table(only, 20))
    angle = 13 * plain(8, 100.0) / long
    np.testing.assert_allclose(rows[33], 1.5 * np.r_[np.cos(angle), np.sin(angle)], atol=1e-6)
