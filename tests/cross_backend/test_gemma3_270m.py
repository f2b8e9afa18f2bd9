"""Gemma 3 270M's greedy answers: the file's weights in f32 through the `transformers` library.

How they were made stands in the file itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.helpers.tiny_model import GOLDEN
from zllm.embedded import Engine

TRUTH = json.loads((GOLDEN / "gemma3_270m_greedy.json").read_text())


@pytest.fixture(scope="module")
def engine(gemma3_path: Path) -> Iterator[Engine]:
    with Engine(model=gemma3_path, backend="oracle") as opened:
        yield opened


def test_greedy_ids(engine: Engine) -> None:
    asked = {"max_tokens": 24, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    answers = engine.generate_many([{"prompt": item["prompt"], **asked} for item in TRUTH["items"]])
    for item, answer in zip(TRUTH["items"], answers, strict=True):
        assert answer["prompt_token_ids"] == item["prompt_ids"]
        assert answer["choices"][0]["token_ids"] == item["ids"]


@pytest.mark.vulkan
def test_webgpu(gemma3_path: Path) -> None:
    """Weights in Q4_K, Q5_0, Q6_K and Q8_0, as the file mixes them."""
    items, size = TRUTH["items"][:2], 6
    asked = {"max_tokens": size, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    with Engine(model=gemma3_path, backend="webgpu") as engine:
        answers = engine.generate_many([{"prompt": item["prompt"], **asked} for item in items])
    for item, answer in zip(items, answers, strict=True):
        assert answer["choices"][0]["token_ids"] == item["ids"][:size]


def test_logits_beyond_the_window(engine: Engine) -> None:
    """600 tokens: the sliding layers see the last 512 of them."""
    truth = TRUTH["long"]
    (logits,) = engine.logits([truth["ids"]])
    for row, top in zip(truth["rows"], truth["top5"], strict=True):
        ids, values = top
        assert np.argsort(-logits[row], kind="stable")[:5].tolist() == ids
        np.testing.assert_allclose(logits[row][ids], values, rtol=1e-3)
