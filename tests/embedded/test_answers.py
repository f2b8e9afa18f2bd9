"""Answers and streams of them: what they hold."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np

from tests.embedded.conftest import CHAIN, IDS, chat, choice_of
from zllm.embedded import Engine


def test_shape_of_a_chat(chain: Engine) -> None:
    answer = chain.generate(chat("hi 1", return_token_ids=True, model="mine"))
    assert answer.pop("id").startswith("chatcmpl-") and abs(answer.pop("created") - time.time()) < 9
    assert answer == {
        "object": "chat.completion",
        "model": "mine",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": " ok😀!!"},
                "logprobs": None,
                "finish_reason": "stop",
                "token_ids": [257, 312, 313, 258, 315],
            }
        ],
        "prompt_token_ids": [319, 104, 105, 32, 49],
        "usage": {
            "prompt_tokens": 5,
            "completion_tokens": 5,
            "total_tokens": 10,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
    }


def test_shape_of_a_completion(chain: Engine) -> None:
    answer = chain.generate({"prompt": "hi 3", "temperature": 0})
    assert answer["id"].startswith("cmpl-") and answer["object"] == "text_completion"
    assert answer["model"] == str(CHAIN) and "prompt_token_ids" not in answer
    assert choice_of(answer) == {
        "index": 0,
        "text": " alpha beta gamma delta",
        "logprobs": None,
        "finish_reason": "stop",
    }


def test_a_stream_joins_to_the_answer(chain: Engine) -> None:
    request = {"prompt": "hi 1", "temperature": 0, "logprobs": 1, "return_token_ids": True}
    whole = choice_of(chain.generate(request))
    chunks = list(chain.stream({**request, "stream_options": {"include_usage": True}}))
    assert len({chunk["id"] for chunk in chunks}) == 1
    *parts, last = chunks
    assert last["choices"] == [] and last["usage"]["completion_tokens"] == 5
    pieces = [choice_of(part) for part in parts]
    assert "".join(piece["text"] for piece in pieces) == whole["text"]
    assert [id for piece in pieces for id in piece["token_ids"]] == whole["token_ids"]
    streamed = [piece["logprobs"] for piece in pieces if piece["logprobs"]]
    for name in ("tokens", "token_logprobs", "top_logprobs"):
        assert [one for part in streamed for one in part[name]] == whole["logprobs"][name]
    assert [piece["finish_reason"] for piece in pieces][-1] == "stop"
    assert "usage" not in parts[-1]


def test_streams_of_several_choices_are_told_apart_by_index(llama3: Engine) -> None:
    request = {**IDS, "temperature": 1, "seed": 5, "n": 3, "max_tokens": 6}
    whole = llama3.generate(request)
    ids: dict[int, list[int]] = {0: [], 1: [], 2: []}
    reasons: dict[int, str] = {}
    for chunk in llama3.stream(request):
        choice = choice_of(chunk)
        ids[choice["index"]] += choice["token_ids"]
        if choice["finish_reason"]:
            reasons[choice["index"]] = choice["finish_reason"]
    assert [*ids.values()] == [choice["token_ids"] for choice in whole["choices"]]
    assert len(set(map(tuple, ids.values()))) == 3
    assert reasons == {0: "length", 1: "length", 2: "length"}
    assert whole["usage"]["completion_tokens"] == 18


def test_packed_weights_give_the_same_answers_and_stay_small(smollm2_path: Path) -> None:
    asked = {"prompt": "The capital of France is", "temperature": 0, "max_tokens": 3}
    with Engine(model=smollm2_path, backend="oracle", resident="packed", context=128) as packed:
        held = packed.backend.memory()["weights"]
        assert held <= 1.02 * smollm2_path.stat().st_size
        ids = packed.logits([[1, 2, 3]])[0]
        text = choice_of(packed.generate(asked))["text"]
    with Engine(model=smollm2_path, backend="oracle", context=128) as dense:
        np.testing.assert_allclose(ids, dense.logits([[1, 2, 3]])[0], atol=2e-3)
        assert text == choice_of(dense.generate(asked))["text"]
        elements = sum(np.prod(w.shape) for w in dense.model.checkpoint.tensors.values())
        weights = dense.backend.memory()["weights"]
        assert weights <= 4 * elements + dense.backend.weights["rope_table.0"].size_bytes, (
            "one copy"
        )


def test_answers_are_json(chain: Engine) -> None:
    answer = chain.generate(chat("hi 2", logprobs=True, top_logprobs=2, return_token_ids=True))
    assert json.loads(json.dumps(answer)) == answer
