"""Divergence of two models' logits: against sums written out, and where they must be zero."""

from __future__ import annotations

import math

import numpy as np
import pytest

from zllm.bin import divergence
from zllm.bin.divergence import Divergence, log_softmax


def test_against_sums_written_out() -> None:
    # p = (1/2, 1/4, 1/4) then (1/4, 1/2, 1/4); q = (1/4, 1/2, 1/4) both times.
    half, quarter = math.log(1 / 2), math.log(1 / 4)
    reference = np.float32([[half, quarter, quarter], [quarter, half, quarter]])
    logits = np.float32([[quarter, half, quarter]] * 2) + 5  # a shift changes nothing
    found = Divergence()
    found.add(logits, reference, [1, 0])
    # 1/2 ln 2 + 1/4 ln 1/2 + 0 = 1/4 ln 2
    result = found.result()
    assert result["tokens"] == 2
    assert result["kl_mean"] == pytest.approx(math.log(2) / 8, rel=1e-6)
    assert result["kl_max"] == pytest.approx(math.log(2) / 4, rel=1e-6)
    assert result["top1_agreement"] == 0.5
    # Token 0 follows the first row: q gives it 1/4, p gives it 1/2.
    assert result["perplexity"] == pytest.approx(4, rel=1e-6)
    assert result["reference_perplexity"] == pytest.approx(2, rel=1e-6)


def test_equal_logits_do_not_diverge() -> None:
    logits = np.random.default_rng(0).standard_normal((5, 7)).astype(np.float32)
    found = Divergence()
    found.add(logits, logits.copy(), [1, 2, 3, 4, 5])
    result = found.result()
    assert result["kl_max"] == 0 and result["top1_agreement"] == 1
    assert result["perplexity"] == result["reference_perplexity"]


def test_blocks_and_windows_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(1)
    logits, reference = random.standard_normal((2, 9, 4)).astype(np.float32)
    tokens = random.integers(4, size=9).tolist()
    whole = Divergence()
    whole.add(logits, reference, tokens)
    monkeypatch.setattr(divergence, "BLOCK_ELEMENTS", 8)  # two rows
    parts = Divergence()
    parts.add(logits, reference, tokens)
    assert parts.result() == pytest.approx(whole.result(), rel=1e-12)
    windows = Divergence()
    windows.add(logits[:4], reference[:4], tokens[:4])
    windows.add(logits[4:], reference[4:], tokens[4:])
    assert windows.followed == whole.followed - 1
    assert windows.result()["kl_mean"] == pytest.approx(whole.result()["kl_mean"], rel=1e-12)


def test_a_token_alone_has_no_perplexity() -> None:
    found = Divergence()
    found.add(np.zeros((1, 3), np.float32), np.zeros((1, 3), np.float32), [2])
    assert found.result()["perplexity"] is None


def test_large_logits_do_not_overflow() -> None:
    rows = log_softmax(np.float32([[1e4, 0], [-1e4, 0]]))
    np.testing.assert_allclose(rows, [[0, -1e4], [-1e4, 0]])
