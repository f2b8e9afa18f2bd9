"""The indexer: scores by the formula, selections row by row, ties, recorded choices."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.helpers.golden import F32, recorded, tensors
from zllm import norm, rope
from zllm.attention import dsa
from zllm.attention.dsa import SelectSpec
from zllm.norm import LayerNormSpec, RmsNormSpec
from zllm.rope import RopeSpec

SPEC = SelectSpec(heads=3, size=4, top_k=5)


def inputs(rows: int, keys: int, spec: SelectSpec = SPEC) -> tuple[F32, F32, F32]:
    rng = np.random.default_rng(rows * 100 + keys)
    q = rng.standard_normal((rows, spec.heads, spec.size))
    head_weights = rng.standard_normal((rows, spec.heads))  # some below 0
    k = rng.standard_normal((keys, spec.size))
    return q.astype(np.float32), head_weights.astype(np.float32), k.astype(np.float32)


def test_scores_equal_the_formula() -> None:
    q, head_weights, keys = inputs(6, 11)
    found = dsa.score(q, head_weights, keys, SPEC)
    for row, key in np.ndindex(found.shape):
        hits = [max(0.0, float(q[row, i] @ keys[key]) / 2) for i in range(SPEC.heads)]
        assert found[row, key] == pytest.approx(float(head_weights[row] @ hits), abs=1e-5)


def naive(scores: F32, candidates: int, count: int) -> list[int]:
    ranked = sorted(range(candidates), key=lambda key: (-scores[key], key))
    return sorted(ranked[:count])


@pytest.mark.parametrize("kind", ["distinct", "many equal", "all equal", "negative"])
@pytest.mark.parametrize("count", [1, 4, 19, 20, 33])
def test_the_best_are_chosen_and_ties_go_to_the_lower_index(kind: str, count: int) -> None:
    rng = np.random.default_rng(3)
    scores = {
        "distinct": rng.standard_normal((12, 20)),
        "many equal": rng.integers(-1, 2, (12, 20)),
        "all equal": np.zeros((12, 20)),
        "negative": -rng.integers(1, 4, (12, 20)),
    }[kind].astype(np.float32)
    candidates = np.array([0, 1, 2, 3, 4, 5, 7, 10, 18, 19, 20, 20])
    chosen = dsa.best(scores, candidates, count)
    for row, mask in enumerate(chosen):
        assert np.flatnonzero(mask).tolist() == naive(scores[row], candidates[row], count)


def test_an_exact_zero_beats_a_negative_score() -> None:
    """Head weights below 0 put keys that relu silenced above those that it did not."""
    spec = SelectSpec(1, 2, 2)
    q, head_weights = np.array([[[1, 0]]], np.float32), np.array([[-1]], np.float32)
    keys = np.array([[1, 0], [-1, 0], [2, 0], [-3, 0]], np.float32)
    assert dsa.select(q, head_weights, keys, np.array([3]), spec).tolist() == [[1, 3]]


def test_positions_are_ascending_and_padded() -> None:
    mask = np.array([[0, 0, 0], [1, 0, 1], [1, 1, 1]], np.bool_)
    expected = [[-1, -1, -1, -1], [0, 2, -1, -1], [0, 1, 2, -1]]
    found = dsa.positions(mask, 4)
    assert found.dtype == np.int32 and found.tolist() == expected


def test_no_row_sees_beyond_its_position_and_early_rows_see_all() -> None:
    q, head_weights, keys = inputs(9, 12)
    own = np.arange(3, 12)  # an append: three tokens are cached
    found = dsa.select(q, head_weights, keys, own, SPEC)
    scores = dsa.score(q, head_weights, keys, SPEC)
    for row, position in enumerate(own):
        ours = [key for key in found[row].tolist() if key >= 0]
        assert ours == naive(scores[row], position + 1, SPEC.top_k)
        if position < SPEC.top_k:
            assert ours == list(range(position + 1))


RECORDED = [
    ("deepseek_v32", 0),
    ("deepseek_v32", 1),
    ("deepseek_v32", 2),
    ("glm_moe_dsa", 0),
    ("glm_moe_dsa", 1),
    ("glm_moe_dsa", 4),
]


def angles(folder: str, rows: int) -> F32:
    if folder == "glm_moe_dsa":
        return rope.table(RopeSpec(8, 1e5), rows)
    factor = (0.1 * np.log(8) + 1) / (0.1 * 0.7 * np.log(8) + 1)
    spec = RopeSpec(8, 1e4, "yarn", 8.0, original_context=64, attention_factor=factor)
    return rope.table(spec, rows)


def members_in_front(x: NDArray[np.float32], folder: str) -> NDArray[np.float32]:
    """The reference writes interleaved pairs with all first members in front."""
    if folder != "glm_moe_dsa":
        return x
    return np.concatenate([x[..., 0:8:2], x[..., 1:8:2], x[..., 8:]], axis=-1)


@pytest.mark.parametrize(("folder", "layer"), RECORDED)
def test_equals_the_recorded_selection(folder: str, layer: int) -> None:
    golden, at = recorded(folder), f"model.layers.{layer}."
    w = {k.removeprefix(at): v for k, v in tensors(folder).items() if k.startswith(at)}
    inner = {name.removeprefix("self_attn.indexer."): array for name, array in w.items()}
    spec = SelectSpec(8, 16, 16)
    x = golden["p0_hs_in" if layer == 0 else f"p0_hs_{layer - 1}"]
    h = norm.rms_norm(x, w["input_layernorm.weight"], RmsNormSpec(1e-3))
    down = h @ w["self_attn.q_a_proj.weight"].T
    latent = norm.rms_norm(down, w["self_attn.q_a_layernorm.weight"], RmsNormSpec(1e-6))
    turned = angles(folder, len(x))
    interleaved = folder == "glm_moe_dsa"
    k = h @ inner["wk.weight"].T
    k = norm.layer_norm(k, inner["k_norm.weight"], inner["k_norm.bias"], LayerNormSpec(1e-6))
    k = rope.rotate(k[:, None], turned, interleaved=interleaved)[:, 0]
    kept = golden[f"p0_cache_ik_{layer}"]
    np.testing.assert_allclose(members_in_front(k, folder), kept, atol=5e-6)
    q = (latent @ inner["wq_b.weight"].T).reshape(len(x), 8, 16)
    q = rope.rotate(q, turned, interleaved=interleaved)
    head_weights = h @ inner["weights_proj.weight"].T * np.float32(8**-0.5)
    found = dsa.select(q, head_weights, k, np.arange(len(x)), spec)
    assert found.shape == (27, 16)
    for position, theirs in enumerate(golden[f"p0_topk_{layer}"].tolist()):
        visible = sorted(key for key in theirs if key <= position)  # the others are masked later
        assert [key for key in found[position].tolist() if key >= 0] == visible
