"""Pools of index keys against the reference implementation's selections, and by the formula."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.helpers.golden import F32, recorded, tensors
from zllm import norm
from zllm.attention import kpool
from zllm.attention.dsa import SelectSpec
from zllm.norm import LayerNormSpec, RmsNormSpec

# folder, layer, spec, rms_norm_eps
RECORDED = [
    ("glm5_next", 2, SelectSpec(8, 16, 16, 4, True), 1e-4),
    ("glm5_next", 5, SelectSpec(8, 16, 16, 4, True), 1e-4),
    ("glm5_next_b", 0, SelectSpec(6, 16, 12, 3, True), 1e-3),
    ("glm5_next_b", 3, SelectSpec(6, 16, 12, 3, True), 1e-3),
    ("glm5_next_notail", 2, SelectSpec(8, 16, 16, 4, False), 1e-4),
]


def index(folder: str, layer: int, spec: SelectSpec, eps: float) -> tuple[F32, F32, F32, F32]:
    """Queries [S, I, e], head weights [S, I], keys and gates [S, e] of a layer's recorded input."""
    prefix = f"model.language_model.layers.{layer}."
    w = {name.removeprefix(prefix): array for name, array in tensors(folder).items()}
    x = recorded(folder)[f"p0_attn_hc_in_{layer}"]
    h = norm.rms_norm(x, w["input_layernorm.weight"], RmsNormSpec(eps))
    q_a = h @ w["self_attn.q_a_proj.weight"].T + w.get("self_attn.q_a_proj.bias", 0)
    latent = norm.rms_norm(q_a, w["self_attn.q_a_layernorm.weight"], RmsNormSpec(eps))
    inner = {name.removeprefix("self_attn.indexer."): array for name, array in w.items()}
    q = (latent @ inner["wq_b.weight"].T).reshape(len(x), spec.heads, spec.size)
    head_weights = h @ inner["weights_proj.weight"].T * np.float32(spec.heads**-0.5)
    raw = h @ inner["wk.weight"].T
    k = norm.layer_norm(raw, inner["k_norm.weight"], inner["k_norm.bias"], LayerNormSpec(1e-6))
    return q, head_weights, k, h @ inner["index_kpool_compress_gate"].T


def ape_of(folder: str, layer: int) -> F32:
    name = f"model.language_model.layers.{layer}.self_attn.indexer.index_kpool_compress_ape"
    return tensors(folder)[name]


@pytest.mark.parametrize(("folder", "layer", "spec", "eps"), RECORDED)
def test_equals_the_recorded_selection(
    folder: str, layer: int, spec: SelectSpec, eps: float
) -> None:
    q, head_weights, k, gate = index(folder, layer, spec, eps)
    golden = recorded(folder)
    np.testing.assert_allclose(k, golden[f"p0_cache_ik_{layer}"][:, : spec.size], atol=2e-6)
    own = np.arange(len(k))
    closed = kpool.closed_by(0, len(k), spec.pool)
    pools = kpool.pool_keys(k[closed], gate[closed], ape_of(folder, layer))
    found = kpool.select(q, head_weights, pools, own, spec)
    assert found.dtype == np.int32 and found.shape == (len(k), spec.width)
    for row, theirs in zip(found, golden[f"p0_topk_{layer}"].tolist(), strict=True):
        ours = row[: np.count_nonzero(row >= 0)]
        assert (np.diff(ours) > 0).all() and (row[len(ours) :] == -1).all()
        assert ours.tolist() == sorted(position for position in theirs if position >= 0)


def keys_of(scores: list[float]) -> tuple[F32, F32, F32]:
    """One head of size 1 whose pools score as given, for one row."""
    return np.ones((1, 1, 1), np.float32), np.ones((1, 1), np.float32), np.array([scores]).T


@pytest.mark.parametrize(
    ("own", "tail", "expected"),
    [
        (0, True, [0]),
        (1, True, [0, 1]),
        (2, True, [0, 1, 2]),  # the first pool, complete
        (3, True, [0, 1, 2, 3]),
        (8, True, [0, 1, 2, 3, 4, 5]),  # three pools, two chosen: its own lost
        (9, True, [0, 1, 2, 3, 4, 5, 9]),
        (13, True, [3, 4, 5, 9, 10, 11, 12, 13]),
        (0, False, []),
        (1, False, []),
        (2, False, [0, 1, 2]),
        (4, False, [0, 1, 2]),
        (13, False, [3, 4, 5, 9, 10, 11]),
    ],
)
def test_pools_and_tail_of_a_row(own: int, tail: bool, expected: list[int]) -> None:
    spec = SelectSpec(1, 1, 6, 3, tail)
    pools = [2.0, 3.0, 1.0, 4.0, 9.0][: (own + 1) // 3]
    q, head_weights, keys = keys_of(pools)
    found = kpool.select(q, head_weights, keys, np.array([own]), spec)[0]
    assert found.tolist() == expected + [-1] * (spec.width - len(expected))


def test_what_is_a_pool_for_the_last_row_is_tail_for_an_earlier_one() -> None:
    spec = SelectSpec(1, 1, 3, 3, True)
    q, head_weights = np.ones((4, 1, 1), np.float32), np.ones((4, 1), np.float32)
    keys = np.array([[5.0], [1.0]], np.float32)
    found = kpool.select(q, head_weights, keys, np.arange(2, 6), spec)
    seen = [row[row >= 0].tolist() for row in found]
    assert seen == [[0, 1, 2], [0, 1, 2, 3], [0, 1, 2, 3, 4], [0, 1, 2]]


def test_equal_scores_go_to_the_lower_pool() -> None:
    q, head_weights, keys = keys_of([0.0, -1.0, 0.0, -3.0])  # all 0 after relu
    found = kpool.select(q, head_weights, keys, np.array([7]), SelectSpec(1, 1, 4, 2))
    assert found.tolist() == [[0, 1, 2, 3]]


@pytest.mark.parametrize(
    ("first", "count", "closed"),
    [(0, 2, []), (0, 3, [0]), (2, 1, [0]), (2, 5, [0, 1]), (3, 2, []), (4, 9, [1, 2, 3])],
)
def test_which_pools_an_append_closes(first: int, count: int, closed: list[int]) -> None:
    found = kpool.closed_by(first, count, 3)
    assert found.tolist() == [[3 * p, 3 * p + 1, 3 * p + 2] for p in closed]


def test_a_pool_key_is_a_softmax_over_its_tokens_per_channel() -> None:
    rng = np.random.default_rng(0)
    keys, gates = (rng.standard_normal((5, 3, 4)).astype(np.float32) for _ in range(2))
    gates[0] = 1e4  # large gates do not overflow
    ape = rng.standard_normal((3, 4)).astype(np.float32)
    found = kpool.pool_keys(keys, gates, ape)
    for pool, channel in np.ndindex(5, 4):
        logits: NDArray[np.float64] = (gates[pool, :, channel] + ape[:, channel]).astype(float)
        weights = np.exp(logits - logits.max())
        expected = weights @ keys[pool, :, channel] / weights.sum()
        assert found[pool, channel] == pytest.approx(expected, abs=1e-6)
