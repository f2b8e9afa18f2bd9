"""Which experts a token meets, and with what weights.

Axes: R tokens, E experts, k experts chosen per token.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]

# Added to the sum that weights are divided by: reference code of [2412.19437].
SUM_EPS = np.float32(1e-20)


@dataclass(frozen=True, slots=True)
class RouteSpec:
    """score: softmax | sigmoid | sqrt_softplus of the logits, or softmax_of_chosen."""

    score: str
    top_k: int
    normalise: bool = False  # weights are divided by their sum
    scale: float = 1.0  # routed_scaling_factor
    groups: int = 1  # n_group
    kept_groups: int = 1  # topk_group


def route(logits: F32, spec: RouteSpec, /, *, bias: F32 | None = None) -> tuple[I32, F32]:
    """[R, E] -> ids [R, k] in ascending order, weights [R, k].

    `bias` [E] is added to the scores that choose; the weights are the scores without it
    [2408.15664]. With groups [2412.19437] the experts are E/groups runs, a run's score is the sum
    of its two best, and only experts of the best `kept_groups` runs can be chosen. Equal scores:
    the lower index wins.
    """
    scores = _scores(logits, spec)
    biased = scores if bias is None else scores + bias
    if spec.groups > 1:
        biased = np.where(_in_kept_groups(biased, spec), biased, np.float32(-np.inf))
    ids = np.sort(_largest(biased, spec.top_k), axis=1)
    return ids, _weights(scores, ids, spec)


def route_by_token(logits: F32, chosen: I32, spec: RouteSpec, /) -> tuple[I32, F32]:
    """[R, E] and the experts [R, k] that a table gives for each token -> as `route`."""
    ids = np.sort(chosen, axis=1)
    return ids, _weights(_scores(logits, spec), ids, spec)


def _scores(logits: F32, spec: RouteSpec) -> F32:
    match spec.score:
        case "softmax":
            return _softmax(logits)
        case "sigmoid":
            with np.errstate(over="ignore"):  # e^-z = inf gives σ(z) = 0, as it should
                sigmoid: F32 = np.float32(1) / (np.float32(1) + np.exp(-logits))
            return sigmoid
        case "sqrt_softplus":
            root: F32 = np.sqrt(np.logaddexp(logits, np.float32(0)))
            return root
        case _:
            assert spec.score == "softmax_of_chosen", spec
            return logits


def _in_kept_groups(biased: F32, spec: RouteSpec) -> NDArray[np.bool_]:
    rows, experts = biased.shape
    by_group = np.sort(biased.reshape(rows, spec.groups, -1), axis=2)
    kept = _largest(by_group[..., -2:].sum(axis=2), spec.kept_groups)
    is_kept = np.zeros((rows, spec.groups), np.bool_)
    np.put_along_axis(is_kept, kept, True, axis=1)
    return np.repeat(is_kept, experts // spec.groups, axis=1)


def _largest(scores: F32, count: int) -> I32:
    """Indices of the largest per row, [R, E] -> [R, count]; of equals the lower ones."""
    return np.argsort(-scores, axis=1, kind="stable")[:, :count].astype(np.int32)


def _weights(scores: F32, ids: I32, spec: RouteSpec) -> F32:
    weights: F32 = np.take_along_axis(scores, ids, axis=1)
    if spec.score == "softmax_of_chosen":
        weights = _softmax(weights)
    if spec.normalise:
        weights = weights / (weights.sum(axis=1, keepdims=True) + SUM_EPS)
    return weights * np.float32(spec.scale)


def _softmax(logits: F32) -> F32:
    powers: F32 = np.exp(logits - logits.max(axis=1, keepdims=True))
    total: F32 = powers.sum(axis=1, keepdims=True)
    return np.divide(powers, total, out=powers)
