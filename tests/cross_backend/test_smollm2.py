"""SmolLM2's greedy answers: the model's weights in f32 through the `transformers` library."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cross_backend.backends import Expected
from tests.cross_backend.conftest import Open
from tests.helpers.tiny_model import GOLDEN

ITEMS = json.loads((GOLDEN / "smollm2_greedy.json").read_text())["items"]


def request_of(item: dict[str, Any]) -> dict[str, Any]:
    asked = {"temperature": 0, "max_tokens": 48, "return_token_ids": True}
    return {"messages": item["messages"], **asked}


def check(item: dict[str, Any], answer: dict[str, Any], expected: Expected) -> None:
    truth, choice = item["f32"], answer["choices"][0]
    assert answer["prompt_token_ids"] == item["prompt_ids"]
    close = [step for step, gap in enumerate(truth["top2_gap"]) if gap < expected.ids_up_to_gap]
    upto = close[0] if close else len(truth["ids"])
    assert choice["token_ids"][:upto] == truth["ids"][:upto]
    if close:
        return
    assert choice["token_ids"] == truth["ids"]
    assert choice["message"] == {
        "role": "assistant",
        "content": truth["text"].removesuffix("<|im_end|>"),
    }
    stopped = truth["ids"][-1] == 2
    assert choice["finish_reason"] == ("stop" if stopped else "length")
    usage = answer["usage"]
    assert usage["prompt_tokens"] == len(item["prompt_ids"])
    assert usage["completion_tokens"] == len(truth["ids"])
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


@pytest.mark.parametrize("item", ITEMS, ids=lambda item: item["messages"][-1]["content"][:20])
def test_answers_alone(
    item: dict[str, Any], open_engine: Open, smollm2_path: Path, expected: Expected
) -> None:
    check(item, open_engine(smollm2_path).generate(request_of(item)), expected)


def test_answers_in_one_batch(open_engine: Open, smollm2_path: Path, expected: Expected) -> None:
    engine = open_engine(smollm2_path)
    answers = engine.generate_many([request_of(item) for item in ITEMS])
    for item, answer in zip(ITEMS, answers, strict=True):
        check(item, answer, expected)
