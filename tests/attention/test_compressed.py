"""Compressed attention against what the reference implementation recorded, and by the formula."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from tests.helpers.golden import F32, recorded, tensors
from zllm import norm, rope
from zllm.attention import compressed, kpool
from zllm.attention.compressed import CompressedSpec, CompressorSpec, SelectEntriesSpec
from zllm.attention.dsa import SelectSpec
from zllm.norm import RmsNormSpec, UnitNormSpec
from zllm.rope import RopeSpec

# Sizes of tests/data/golden/deepseek_v4.
FOLDER, EPS, CONTEXT, ROTATED = "deepseek_v4", 1e-4, 256, 8
HEADS, SIZE, WINDOW, GROUPS = 4, 16, 8, 2
RATES = [0, 4, 8, 4]  # by layer
INDEX = SelectSpec(heads=8, size=12, top_k=5)
MAIN = RopeSpec(ROTATED, 10000.0)
YARN = RopeSpec(ROTATED, 40000.0, scaling="yarn", factor=4.0, original_context=64)


def turned(x: F32, cos_sin: F32) -> F32:
    """The last r numbers of each head: [S, heads, K]."""
    out = x.copy()
    out[..., -ROTATED:] = rope.rotate(x[..., -ROTATED:].copy(), cos_sin, interleaved=True)
    return out


@dataclass(frozen=True)
class Layer:
    """A layer's recorded input, and what its tensors make of it."""

    index: int

    @property
    def rate(self) -> int:
        return RATES[self.index]

    def tensor(self, name: str) -> F32:
        return tensors(FOLDER)[f"layers.{self.index}.{name}"]

    @property
    def h(self) -> F32:
        x = recorded(FOLDER)[f"p0_attn_hc_in_{self.index}"]
        return norm.rms_norm(x, self.tensor("attn_norm.weight"), RmsNormSpec(EPS))

    @property
    def table(self) -> F32:
        return rope.table(YARN if self.rate else MAIN, CONTEXT)

    @property
    def latent(self) -> F32:
        q_a = self.h @ self.tensor("attn.wq_a.weight").T
        return norm.rms_norm(q_a, self.tensor("attn.q_norm.weight"), RmsNormSpec(EPS))

    def entries(self, prefix: str, size: int, count: int | None = None) -> F32:
        """Of the first `count` tokens."""
        h = self.h[:count]
        spec = CompressorSpec(self.rate, size, self.rate == 4, ROTATED, EPS)
        kv, gates = (h @ self.tensor(f"{prefix}.{w}.weight").T for w in ("wkv", "wgate"))
        windows = kpool.closed_by(0, len(h), self.rate)
        read = compressed.read_by(windows, spec)
        at = np.maximum(read, 0)
        weights = self.tensor(f"{prefix}.ape"), self.tensor(f"{prefix}.norm.weight")
        cos_sin = self.table[windows[:, 0]]
        return compressed.entries((kv[at], gates[at]), read, weights, cos_sin, spec)

    def chosen(self) -> np.ndarray:
        rows, cos_sin = len(self.h), self.table[: len(self.h)]
        q = (self.latent @ self.tensor("attn.indexer.wq_b.weight").T).reshape(rows, INDEX.heads, -1)
        head_weights = self.h @ self.tensor("attn.indexer.weights_proj.weight").T
        return compressed.select(
            turned(q, cos_sin),
            head_weights * np.float32(INDEX.heads**-0.5),
            self.entries("attn.indexer.compressor", INDEX.size),
            np.arange(rows),
            SelectEntriesSpec(INDEX, self.rate),
        )


@pytest.mark.parametrize("layer", [Layer(1), Layer(2), Layer(3)], ids=lambda layer: layer.index)
def test_entries_equal_the_recorded_ones(layer: Layer) -> None:
    found = layer.entries("attn.compressor", SIZE)
    truth = recorded(FOLDER)[f"p0_ckv_{layer.index}"]
    assert found.shape == truth.shape == (27 // layer.rate, SIZE)
    np.testing.assert_allclose(found, truth, atol=5e-6)


@pytest.mark.parametrize("layer", [Layer(1), Layer(3)], ids=lambda layer: layer.index)
def test_selections_equal_the_recorded_ones(layer: Layer) -> None:
    found, truth = layer.chosen(), recorded(FOLDER)[f"p0_topk_{layer.index}"]
    assert found.shape == truth.shape
    for mine, theirs in zip(found.tolist(), truth.tolist(), strict=True):
        kept = sorted(entry for entry in theirs if entry >= 0)
        assert mine == kept + [-1] * (INDEX.top_k - len(kept))
    assert found.max() == 5 and (found[26] >= 0).all()  # six entries, of which five are chosen


@pytest.mark.parametrize("layer", [Layer(i) for i in range(4)], ids=lambda layer: layer.index)
def test_a_whole_sublayer_equals_the_recorded_one(layer: Layer) -> None:
    rows, own = len(layer.h), np.arange(len(layer.h))
    cos_sin, back = layer.table[:rows], layer.table[:rows] * np.repeat([1, -1], ROTATED // 2)
    q = (layer.latent @ layer.tensor("attn.wq_b.weight").T).reshape(rows, HEADS, SIZE)
    q = turned(norm.unit_norm(q, UnitNormSpec(SIZE, EPS)), cos_sin)
    kv = layer.h @ layer.tensor("attn.wkv.weight").T
    kv = norm.rms_norm(kv, layer.tensor("attn.kv_norm.weight"), RmsNormSpec(EPS))
    raw = turned(kv[:, None], cos_sin)[:, 0]
    entries, seen = raw[:0], compressed.in_window(own, own, WINDOW)
    if layer.rate:
        entries = layer.entries("attn.compressor", SIZE)
        chosen = layer.chosen() if layer.rate == 4 else None
        far = compressed.seen_entries(own, chosen, layer.rate)
        seen = np.concatenate([seen, far], axis=1)
    spec, sinks = CompressedSpec(HEADS, SIZE, WINDOW, layer.rate), layer.tensor("attn.attn_sink")
    a = turned(compressed.attend(q, raw, entries, seen, spec, sinks=sinks), back.astype(np.float32))
    o_a = layer.tensor("attn.wo_a.weight").reshape(GROUPS, -1, HEADS * SIZE // GROUPS)
    inner = np.einsum("sgc,gnc->sgn", a.reshape(rows, GROUPS, -1), o_a).reshape(rows, -1)
    found = inner @ layer.tensor("attn.wo_b.weight").T
    np.testing.assert_allclose(found, recorded(FOLDER)[f"p0_attn_{layer.index}"], atol=5e-6)


@pytest.mark.parametrize("layer", [Layer(1), Layer(2)], ids=lambda layer: layer.index)
def test_an_entry_is_final_once_its_last_token_exists(layer: Layer) -> None:
    whole = layer.entries("attn.compressor", SIZE)
    for count in range(1, 27):
        part = layer.entries("attn.compressor", SIZE, count)
        assert len(part) == count // layer.rate
        np.testing.assert_allclose(part, whole[: len(part)], atol=1e-6)


def test_overlapping_windows_by_the_formula() -> None:
    spec = CompressorSpec(rate=3, size=4, overlap=True, rotated=2, eps=1e-3)
    rng = np.random.default_rng(5)
    kv, gates = (rng.standard_normal((9, 8)).astype(np.float32) for _ in range(2))
    ape, weight = rng.standard_normal((3, 8)).astype(np.float32), np.ones(4, np.float32)
    read = compressed.read_by(np.arange(9).reshape(3, 3), spec)
    assert read.tolist() == [
        [-3, -2, -1, 0, 1, 2],
        [0, 1, 2, 3, 4, 5],
        [3, 4, 5, 6, 7, 8],
    ]
    at = np.maximum(read, 0)
    still = np.repeat([[1.0, 0.0]], 3, axis=0).astype(np.float32)  # cos 1, sin 0
    found = compressed.entries((kv[at], gates[at]), read, (ape, weight), still, spec)
    for window in range(3):
        pooled = np.zeros(4)
        for channel in range(4):
            pairs = [  # token, column: the first half of the window before, the second of its own
                *((token, channel) for token in range(3 * window - 3, 3 * window) if token >= 0),
                *((token, 4 + channel) for token in range(3 * window, 3 * window + 3)),
            ]
            logits = np.array([gates[t, c] + ape[t % 3, c] for t, c in pairs], np.float64)
            shares = np.exp(logits - logits.max())
            shares /= shares.sum()
            pooled[channel] = shares @ [kv[pair] for pair in pairs]
        truth = pooled / np.sqrt((pooled**2).mean() + 1e-3)
        np.testing.assert_allclose(found[window], truth, atol=2e-6)


def test_entries_turn_by_the_first_position_of_their_window() -> None:
    spec = CompressorSpec(rate=2, size=4, overlap=False, rotated=2, eps=1e-6)
    kv = np.tile(np.array([1.0, 1.0, 1.0, 0.0], np.float32), (2, 2, 1))
    zeros, weights = np.zeros_like(kv), (np.zeros((2, 4), np.float32), np.ones(4, np.float32))
    angle = np.array([0.0, 0.5])
    cos_sin = np.stack([np.cos(angle), np.sin(angle)], axis=1).astype(np.float32)
    found = compressed.entries((kv, zeros), np.arange(4).reshape(2, 2), weights, cos_sin, spec)
    found *= np.float32(0.75**0.5)  # undo the norm
    np.testing.assert_allclose(found[0], [1, 1, 1, 0], atol=1e-5)
    np.testing.assert_allclose(found[1], [1, 1, np.cos(0.5), np.sin(0.5)], atol=1e-5)


def test_entries_are_seen_from_their_last_token_on() -> None:
    own = np.arange(1, 9)
    assert compressed.complete(own, 3).tolist() == [0, 1, 1, 1, 2, 2, 2, 3]
    seen = compressed.seen_entries(own, None, 3)
    assert seen.sum(axis=1).tolist() == [0, 1, 1, 1, 2, 2, 2, 3] and seen.shape == (8, 3)
    chosen = np.array([[-1, -1], [0, 2]], np.int32)
    assert compressed.seen_entries(np.array([7, 8]), chosen, 3).tolist() == [
        [False, False, False],
        [True, False, True],
    ]


def test_a_window_counts_the_row_itself() -> None:
    seen = compressed.in_window(np.array([4, 5]), np.arange(2, 6), 3)
    assert seen.tolist() == [[True, True, True, False], [False, True, True, True]]


def test_only_complete_entries_can_be_chosen() -> None:
    spec = SelectEntriesSpec(SelectSpec(heads=1, size=1, top_k=2), rate=4)
    q, head_weights = np.ones((3, 1, 1), np.float32), np.ones((3, 1), np.float32)
    keys = np.array([[1.0], [3.0], [2.0]], np.float32)
    found = compressed.select(q, head_weights, keys, np.array([6, 7, 11]), spec)
    assert found.tolist() == [[0, -1], [0, 1], [1, 2]]
    wide = replace(spec, index=replace(spec.index, top_k=5))
    assert compressed.select(q, head_weights, keys, np.array([6, 7, 11]), wide).shape == (3, 5)
