from __future__ import annotations

import numpy as np
import pytest

from zllm.norm import RmsNormSpec, rms_norm

SHAPES = [(1, 1), (1, 7), (3, 64), (2, 3, 5), (5, 576), (1, 8191)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("eps", [1e-12, 1e-5, 0.5])
def test_equals_the_formula_in_f64(shape: tuple[int, ...], eps: float) -> None:
    rng = np.random.default_rng(1)
    x = (3 * rng.standard_normal(shape)).astype(np.float32)
    w = rng.standard_normal(shape[-1]).astype(np.float32)
    exact = x.astype(np.float64)
    truth = exact / np.sqrt((exact**2).mean(-1, keepdims=True) + eps) * w
    result = rms_norm(x, w, RmsNormSpec(eps))
    assert result.dtype == np.float32 and result.shape == shape
    np.testing.assert_allclose(result, truth, rtol=3e-6, atol=1e-7)


def test_a_row_of_zeros_stays_zero() -> None:
    out = rms_norm(np.zeros((2, 4), np.float32), np.ones(4, np.float32), RmsNormSpec(1e-12))
    assert (out == 0).all()


def test_rows_do_not_mix() -> None:
    x = np.array([[1, 2, 2], [1e3, 0, 0]], np.float32)
    w = np.ones(3, np.float32)
    together = rms_norm(x, w, RmsNormSpec(1e-6))
    assert np.array_equal(together[0], rms_norm(x[:1], w, RmsNormSpec(1e-6))[0])


def test_writes_into_out() -> None:
    x = np.array([[3, 4]], np.float32)
    out = np.full_like(x, np.nan)
    assert rms_norm(x, np.ones(2, np.float32), RmsNormSpec(0.0), out=out) is out
    np.testing.assert_allclose(out, [[3 / np.sqrt(12.5), 4 / np.sqrt(12.5)]], rtol=1e-6)
    assert np.array_equal(x, [[3, 4]]), "the input is left alone"
