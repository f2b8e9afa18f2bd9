"""Hyper-connections against the reference implementation's recorded values."""

from __future__ import annotations

import numpy as np
import pytest

from tests.helpers.golden import F32, recorded, tensors
from zllm import hyper_connection
from zllm.hyper_connection import HyperSpec

SPECS = {
    "glm5_next": HyperSpec(4, 1e-6, 1e-4, 20),
    "glm5_next_b": HyperSpec(2, 1e-5, 1e-3, 5),
}
SITES = [
    (folder, layer, site)
    for folder, layers in (("glm5_next", 6), ("glm5_next_b", 5))
    for layer in range(layers)
    for site in ("attn", "ffn")
]


def weights(folder: str, layer: int, site: str) -> list[F32]:
    prefix = f"model.language_model.layers.{layer}.hc_{site}_"
    return [tensors(folder)[prefix + part] for part in ("fn", "base", "scale")]


def streams_before(folder: str, layer: int) -> F32:
    golden = recorded(folder)
    return golden[f"p0_hs_{layer - 1}"] if layer else golden["p0_hs_in"]


@pytest.mark.parametrize(("folder", "layer", "site"), SITES, ids=str)
def test_equals_the_recorded_maps(folder: str, layer: int, site: str) -> None:
    golden, spec = recorded(folder), SPECS[folder]
    x = streams_before(folder, layer)
    if site == "ffn":  # the streams between the two sublayers
        post, comb = (golden[f"p0_attn_hc_{part}_{layer}"] for part in ("post", "comb"))
        x = hyper_connection.join(golden[f"p0_attn_{layer}"], x, post, comb)
    h, post, comb = hyper_connection.split(x, *weights(folder, layer, site), spec)
    for part, found in (("in", h), ("post", post), ("comb", comb)):
        np.testing.assert_allclose(found, golden[f"p0_{site}_hc_{part}_{layer}"], atol=2e-6)


def test_one_iteration_is_one_step_over_columns() -> None:
    logits = np.random.default_rng(0).standard_normal((3, 4, 4), np.float32)
    comb = hyper_connection.sinkhorn(logits, HyperSpec(4, 0.01, 1e-6, 1))
    rows = np.exp(logits) / np.exp(logits).sum(2, keepdims=True) + 0.01
    np.testing.assert_allclose(comb, rows / (rows.sum(1, keepdims=True) + 0.01), rtol=1e-6)


def test_many_iterations_are_doubly_stochastic() -> None:
    logits = 3 * np.random.default_rng(1).standard_normal((5, 4, 4), np.float32)
    comb = hyper_connection.sinkhorn(logits, HyperSpec(4, 1e-6, 1e-6, 200))
    np.testing.assert_allclose(comb.sum(1), 1, atol=1e-4)
    np.testing.assert_allclose(comb.sum(2), 1, atol=1e-4)


def test_the_mix_is_transposed() -> None:
    x = np.array([[[1.0], [10.0]]], np.float32)
    comb = np.array([[[0.5, 2.0], [0.25, 4.0]]], np.float32)
    post = np.array([[1.0, 3.0]], np.float32)
    joined = hyper_connection.join(np.array([[100.0]], np.float32), x, post, comb)
    np.testing.assert_array_equal(joined[0, :, 0], [100 + 0.5 + 2.5, 300 + 2 + 40])


def test_head_weighs_streams_by_a_gate() -> None:
    rng = np.random.default_rng(2)
    x = rng.standard_normal((3, 2, 5), np.float32)
    fn = rng.standard_normal((2, 10), np.float32)
    base, scale = rng.standard_normal(2, np.float32), np.array([0.7], np.float32)
    found = hyper_connection.head(x, fn, base, scale, HyperSpec(2, 0.01, 0.1, 3))
    for row, streams in enumerate(x.astype(np.float64)):
        z = streams.reshape(-1) / np.sqrt((streams**2).mean() + 0.1)
        pre = 1 / (1 + np.exp(-(fn @ z * 0.7 + base))) + 0.01
        np.testing.assert_allclose(found[row], pre @ streams, rtol=1e-5, atol=1e-6)
