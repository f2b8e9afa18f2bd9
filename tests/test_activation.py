from __future__ import annotations

import numpy as np
import pytest

from zllm.activation import GatedSpec, gated

SILU = GatedSpec("silu")


@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (2, 1536)], ids=str)
def test_silu_equals_the_formula_in_f64(shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(2)
    gate, up = (8 * rng.standard_normal((2, *shape))).astype(np.float32)
    exact = gate.astype(np.float64)
    truth = exact / (1 + np.exp(-exact)) * up
    result = gated(gate, up, SILU)
    assert result.dtype == np.float32
    np.testing.assert_allclose(result, truth, rtol=2e-6, atol=1e-30)


def test_silu_at_its_ends() -> None:
    gate = np.array([[-3e38, -1e4, -90, 0, 90, 1e4, 3e38]], np.float32)
    with np.errstate(over="ignore"):
        result = gated(gate, np.ones_like(gate), SILU)
    assert np.isfinite(result).all()
    np.testing.assert_allclose(result, [[0, 0, 0, 0, 90, 1e4, 3e38]], rtol=1e-6, atol=1e-35)


def test_reads_columns_of_one_product_and_writes_into_out() -> None:
    both = np.arange(12, dtype=np.float32).reshape(2, 6) / 4
    before = both.copy()
    out = np.empty((2, 3), np.float32)
    assert gated(both[:, :3], both[:, 3:], SILU, out=out) is out
    apart = gated(before[:, :3].copy(), before[:, 3:].copy(), SILU)
    assert np.array_equal(out, apart) and np.array_equal(both, before)


def test_an_unknown_activation_is_our_own_mistake() -> None:
    with pytest.raises(AssertionError):
        gated(np.ones((1, 1), np.float32), np.ones((1, 1), np.float32), GatedSpec("relu"))
