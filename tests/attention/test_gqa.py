from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from zllm.attention.gqa import F32, GqaSpec, attend, softmax


def spec_of(heads: int, kv_heads: int, size: int, scale: float | None = None) -> GqaSpec:
    return GqaSpec(heads, kv_heads, size, size**-0.5 if scale is None else scale, size)


def truth(q: F32, k: F32, v: F32, visible: NDArray[np.bool_], spec: GqaSpec) -> NDArray[np.float64]:
    """Head by head, row by row, in f64."""
    out = np.zeros(q.shape)
    for row, head in np.ndindex(q.shape[:2]):
        group = head * spec.kv_heads // spec.heads
        seen = np.flatnonzero(visible[row])
        if not seen.size:
            continue
        scores = k[group, seen].astype(np.float64) @ q[row, head] * spec.scale
        weights = np.exp(scores - scores.max())
        out[row, head] = weights @ v[group, seen] / weights.sum()
    return out


SHAPES = [  # T, S, H, G, K
    (1, 1, 1, 1, 2),
    (1, 9, 6, 2, 8),
    (5, 5, 4, 4, 6),
    (7, 30, 9, 3, 64),
    (3, 17, 8, 1, 10),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_equals_the_formula_in_f64(shape: tuple[int, int, int, int, int]) -> None:
    rows, keys, heads, kv_heads, size = shape
    rng = np.random.default_rng(6)
    spec = spec_of(heads, kv_heads, size)
    q = rng.standard_normal((rows, heads, size)).astype(np.float32)
    k, v = rng.standard_normal((2, kv_heads, keys, size)).astype(np.float32)
    visible = rng.random((rows, keys)) < 0.6
    result = attend(q, k, v, visible, spec)
    np.testing.assert_allclose(result, truth(q, k, v, visible, spec), rtol=1e-5, atol=2e-6)
    everything = np.ones_like(visible)
    unmasked = attend(q, k, v, None, spec)
    np.testing.assert_allclose(unmasked, truth(q, k, v, everything, spec), rtol=1e-5, atol=2e-6)


def test_a_row_that_sees_nothing_gives_zeros() -> None:
    """Case A13."""
    q = np.array([[1, 0], [0, 1], [1, 1]], np.float32)[:, None]
    k = np.array([[[1, 2], [3, 4], [5, 6]]], np.float32)
    v = np.array([[[1, 10], [2, 20], [3, 30]]], np.float32)
    visible = np.array([[1, 0, 0], [0, 0, 0], [1, 1, 0]], bool)
    result = attend(q, k, v, visible, spec_of(1, 1, 2, 1.0))[:, 0]
    np.testing.assert_allclose(result, [[1, 10], [0, 0], [1.982014, 19.820137]], rtol=1e-6)


def test_query_heads_share_key_value_heads_in_runs() -> None:
    """Case A13: heads read 1,1,2,2; tiled heads would read 1,2,1,2."""
    q = np.ones((1, 4, 2), np.float32)
    v = np.array([[[1, 1]], [[2, 2]]], np.float32)
    result = attend(q, np.ones((2, 1, 2), np.float32), v, None, spec_of(4, 2, 2))
    assert result[0, :, 0].tolist() == [1, 1, 2, 2]


def test_scores_beyond_f16_do_not_overflow() -> None:
    """Case A13."""
    scores = np.array([[120000, 119600, 0]], np.float32)
    assert softmax(scores).tolist() == [[1, 0, 0]]


def test_softmax_of_minus_infinity_alone_is_zero_and_near_the_largest_float_finite() -> None:
    with np.errstate(over="ignore"):
        rows = softmax(np.array([[-np.inf, -np.inf], [3e38, -3e38], [-3e38, -3e38]], np.float32))
    assert rows.tolist() == [[0, 0], [1, 0], [0.5, 0.5]]


def test_cache_slices_are_left_alone_and_out_is_written() -> None:
    rng = np.random.default_rng(8)
    cache = rng.standard_normal((2, 2, 32, 4)).astype(np.float32)
    before = cache.copy()
    q = rng.standard_normal((3, 4, 4)).astype(np.float32)
    out = np.full_like(q, np.nan)
    k, v = cache[0][:, 5:12], cache[1][:, 5:12]
    assert attend(q, k, v, None, spec_of(4, 2, 4), out=out) is out
    assert np.array_equal(out, attend(q.copy(), k.copy(), v.copy(), None, spec_of(4, 2, 4)))
    assert np.array_equal(cache, before)
