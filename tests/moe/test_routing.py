"""Routing against the reference implementation's choices, case A12 and a loop in f64."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from zllm.moe.routing import RouteSpec, route, route_by_token

F32 = NDArray[np.float32]


def f32(*values: float) -> F32:
    return np.array(values, np.float32)


def test_a12_the_bias_picks_and_does_not_weigh() -> None:
    spec = RouteSpec("sigmoid", 2, normalise=True, scale=2.5)
    ids, weights = route(f32(2, 1, 0, -1)[None], spec, bias=f32(0, 0, 0, 1))
    assert ids.tolist() == [[0, 3]]
    np.testing.assert_allclose(weights, [[1.91521176, 0.58478824]], rtol=1e-6)


def test_a12_masked_groups_lose_even_to_negative_scores() -> None:
    spec = RouteSpec("sigmoid", 2, normalise=True, groups=4, kept_groups=1)
    bias = np.full(8, -2, np.float32)
    ids, weights = route(f32(1, 2, 3, 0, 2, 1, 0, 0)[None], spec, bias=bias)
    assert ids.tolist() == [[0, 1]]
    np.testing.assert_allclose(weights, [[0.4535509, 0.5464491]], rtol=1e-6)


def scores(logits: NDArray[np.float64], score: str) -> NDArray[np.float64]:
    if score == "softmax":
        return np.asarray(np.exp(logits) / np.exp(logits).sum())
    if score == "sigmoid":
        return 1 / (1 + np.exp(-logits))
    if score == "sqrt_softplus":
        return np.sqrt(np.log1p(np.exp(logits)))
    return logits


def truth(logits: F32, spec: RouteSpec, bias: F32) -> tuple[list[int], NDArray[np.float64]]:
    """One row, in f64, by sorting pairs."""
    plain = scores(logits.astype(np.float64), spec.score)
    biased = plain + bias
    size = len(plain) // spec.groups
    of_group = [sum(sorted(biased[g * size : (g + 1) * size])[-2:]) for g in range(spec.groups)]
    kept = sorted(range(spec.groups), key=lambda g: (-of_group[g], g))[: spec.kept_groups]
    candidates = [e for e in range(len(plain)) if e // size in kept]
    ids = sorted(sorted(candidates, key=lambda e: (-biased[e], e))[: spec.top_k])
    weights = plain[ids]
    if spec.score == "softmax_of_chosen":
        weights = np.exp(weights) / np.exp(weights).sum()
    if spec.normalise:
        weights = weights / weights.sum()
    return ids, weights * spec.scale


@pytest.mark.parametrize("score", ["softmax", "sigmoid", "sqrt_softplus", "softmax_of_chosen"])
@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize("groups", [(1, 1), (4, 2), (3, 3), (6, 1)])
def test_equals_the_formula_in_f64(score: str, normalise: bool, groups: tuple[int, int]) -> None:
    rng = np.random.default_rng(3)
    spec = RouteSpec(score, 2, normalise, 1.7, *groups)
    logits = rng.standard_normal((40, 12)).astype(np.float32) * 3
    bias = rng.standard_normal(12).astype(np.float32)
    ids, weights = route(logits, spec, bias=bias)
    assert ids.dtype == np.int32 and weights.dtype == np.float32
    for row, found, weight in zip(logits, ids, weights, strict=True):
        expected = truth(row, spec, bias)
        assert found.tolist() == expected[0]
        np.testing.assert_allclose(weight, expected[1], rtol=2e-6)


def test_equal_scores_go_to_the_lower_index() -> None:
    ids, weights = route(np.zeros((2, 9), np.float32), RouteSpec("softmax", 4))
    assert ids.tolist() == [[0, 1, 2, 3]] * 2
    np.testing.assert_allclose(weights, 1 / 9, rtol=1e-6)
    ids, _ = route(f32(1, 5, 5, 1, 5, 1)[None], RouteSpec("sigmoid", 2, groups=3, kept_groups=2))
    assert ids.tolist() == [[1, 2]]  # groups 0, 1 and 2 are equal


def test_extreme_logits_stay_finite() -> None:
    logits = f32(-1e4, 1e4, 0, -200)[None]
    for score in ("softmax", "sigmoid", "sqrt_softplus", "softmax_of_chosen"):
        _, weights = route(logits, RouteSpec(score, 4, normalise=True))
        assert np.isfinite(weights).all()
        np.testing.assert_allclose(weights.sum(), 1, rtol=1e-6)


def test_a_table_chooses_and_the_scores_weigh() -> None:
    logits = f32(0.5, -1, 2, 3)[None].repeat(2, axis=0)
    chosen = np.array([[2, 0], [1, 3]], np.int32)
    spec = RouteSpec("sqrt_softplus", 2, normalise=True, scale=1.5)
    ids, weights = route_by_token(logits, chosen, spec)
    assert ids.tolist() == [[0, 2], [1, 3]]
    plain = scores(logits[0].astype(np.float64), "sqrt_softplus")
    for row, pair in zip(weights, ([0, 2], [1, 3]), strict=True):
        np.testing.assert_allclose(row, plain[pair] / plain[pair].sum() * 1.5, rtol=1e-6)
