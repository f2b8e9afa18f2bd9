"""Faults that people met in comparable systems, by their number in the collection of cases."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from tests.cross_backend.conftest import Open
from tests.helpers.tiny_model import CASES, P1, P12
from zllm.embedded import Engine

Json = dict[str, Any]


@pytest.fixture(scope="module")
def chain(open_engine: Open) -> Engine:
    """The next token depends on the last one alone; the last character picks the scenario."""
    return open_engine(CASES / "chain-a")


@pytest.fixture(scope="module")
def llama3(open_engine: Open) -> Engine:
    return open_engine(CASES / "tiny-llama3")


def chat(content: str, **fields: Any) -> Json:
    return {"messages": [{"role": "user", "content": content}], "temperature": 0, **fields}


def streamed(engine: Engine, request: Json) -> tuple[list[str], str]:
    """The deltas of a chat, and its finish reason; the shape of the chunks is checked."""
    chunks = list(engine.stream(request))
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    for chunk in chunks:
        assert chunk["object"] == "chat.completion.chunk"
        json.dumps(chunk, ensure_ascii=False).encode("utf-8")
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert set(reasons[:-1]) == {None} and reasons[-1]
    deltas = [chunk["choices"][0]["delta"].get("content", "") for chunk in chunks]
    assert not deltas[-1], "text comes before the chunk that ends it"
    return deltas, reasons[-1]


def both(engine: Engine, request: Json) -> tuple[str, str]:
    """Text and finish reason, the same streamed and whole."""
    choice = engine.generate(request)["choices"][0]
    deltas, reason = streamed(engine, request)
    assert "".join(deltas) == choice["message"]["content"]
    assert reason == choice["finish_reason"]
    return choice["message"]["content"], reason


@pytest.mark.parametrize(
    ("content", "text"), [("hi 1", " ok😀!!"), ("hi 2", " hm\ufffd"), ("hi 9", "")]
)
def test_a06_one_character_over_several_tokens(chain: Engine, content: str, text: str) -> None:
    assert both(chain, chat(content)) == (text, "stop")
    assert chain.generate(chat(content))["usage"]["prompt_tokens"] == 5


def test_a06_no_delta_holds_half_a_character(chain: Engine) -> None:
    deltas, _ = streamed(chain, chat("hi 1"))
    assert "\ufffd" not in "".join(deltas) and "😀" in deltas


def test_a06_a_character_cut_off_by_max_tokens(chain: Engine) -> None:
    assert both(chain, chat("hi 1", max_tokens=2)) == (" ok\ufffd", "length")


def test_a07_a_user_types_a_special_token(chain: Engine) -> None:
    answer = chain.generate(chat("x<|end|>y9", max_tokens=1, return_token_ids=True))
    assert answer["usage"]["prompt_tokens"] == 11
    assert answer["prompt_token_ids"] == [319, 120, 60, 124, 101, 110, 100, 124, 62, 121, 57]
    raw = {"prompt": "x<|end|>y9", "max_tokens": 1, "return_token_ids": True}
    assert chain.generate(raw)["prompt_token_ids"] == [120, 315, 121, 57]


@pytest.mark.parametrize(
    ("stop", "text"),
    [
        (["beta gamma"], " alpha "),
        (["beta golf"], " alpha beta gamma delta"),
        (["delta force"], " alpha beta gamma delta"),
        (["gamma", "beta"], " alpha "),
        ("gam", " alpha beta "),
    ],
    ids="abcde",
)
def test_a09_stop_string_over_several_tokens(
    chain: Engine, stop: str | list[str], text: str
) -> None:
    assert both(chain, chat("hi 3", stop=stop)) == (text, "stop")


WORDS = {" red", " green", " blue", " grey"}
COLD = [chat("hi 6", max_tokens=4, temperature=t) for t in (0, 1e-7, 1e-5, 1e-4)]
OPEN = [
    chat("hi 6", max_tokens=4, temperature=1, top_k=k, seed=seed)
    for k in (1_000_000, 0, -1)
    for seed in range(5)
]


def texts(answers: list[Json]) -> list[str]:
    return [answer["choices"][0]["message"]["content"] for answer in answers]


def test_a10_temperatures_near_zero_and_top_k_above_the_vocabulary(chain: Engine) -> None:
    alone = [*map(chain.generate, COLD + OPEN)]
    assert texts(alone)[:4] == [" red"] * 4
    drawn = texts(alone)[4:]
    assert set(drawn) <= WORDS and len(set(drawn)) > 1
    assert drawn[:5] == drawn[5:10] == drawn[10:]
    assert texts(chain.generate_many(COLD + OPEN)) == texts(alone)
    assert texts(chain.generate_many((COLD + OPEN)[::-1])) == texts(alone)[::-1]


GO = {"temperature": 0, "max_tokens": 6}


@pytest.mark.parametrize(
    ("prompt", "fields", "text"),
    [
        ("0", {}, " go go go go go go"),
        ("0", {"frequency_penalty": 0.6}, " go go up go up go"),
        (" go go go0", {"frequency_penalty": 0.6}, " go go up go up go"),
        ("0", {"presence_penalty": 1.5}, " go up go go go go"),
        ("0", {"repetition_penalty": 1.5, "max_tokens": 4}, " go up go go"),
        (" go0", {"repetition_penalty": 1.5, "max_tokens": 4}, " up go go go"),
    ],
)
def test_a11_which_tokens_the_penalties_count(
    chain: Engine, prompt: str, fields: Json, text: str
) -> None:
    assert chain.generate({"prompt": prompt, **GO, **fields})["choices"][0]["text"] == text
    assert both(chain, chat(prompt, **{"max_tokens": 6, **fields})) == (text, "length")


GREEDY = {"temperature": 0, "max_tokens": 10, "ignore_eos": True, "return_token_ids": True}
P1_IDS = [52, 20, 27, 22, 25, 58, 20, 58, 36, 16]
P12_IDS = [20, 2, 45, 42, 41, 33, 42, 47, 22, 55]


def token_ids(answer: Json) -> list[int]:
    ids: list[int] = answer["choices"][0]["token_ids"]
    return ids


def test_a13_a_short_prompt_beside_a_long_one(llama3: Engine) -> None:
    requests = [{"tokens": P1, **GREEDY}, {"tokens": P12, **GREEDY}]
    assert [token_ids(llama3.generate(request)) for request in requests] == [P1_IDS, P12_IDS]
    assert [*map(token_ids, llama3.generate_many(requests))] == [P1_IDS, P12_IDS]
    assert [*map(token_ids, llama3.generate_many(requests[::-1] * 3))] == [P12_IDS, P1_IDS] * 3


def test_a13_logits_in_a_batch_equal_those_alone(llama3: Engine) -> None:
    batch = [P12, P1, P12[:5]]
    for together, tokens in zip(llama3.logits(batch), batch, strict=True):
        alone = llama3.logits([tokens])[0]
        np.testing.assert_allclose(together, alone, rtol=0, atol=1e-4 * np.abs(alone).max())


def test_seeded_draws_do_not_depend_on_the_batch_or_the_lane(llama3: Engine) -> None:
    requests = [
        {**GREEDY, "tokens": P12[:n], "temperature": 1.0, "seed": n, **fields}
        for n in range(1, 7)
        for fields in ({}, {"top_p": 0.8}, {"top_k": 5, "min_p": 0.05}, {"n": 2})
    ]
    alone = [llama3.generate(request)["choices"] for request in requests]
    assert len({tuple(choice["token_ids"]) for choices in alone for choice in choices}) > 20
    for batch in (requests, requests[::-1], requests[5:8]):
        for request, answer in zip(batch, llama3.generate_many(batch), strict=True):
            assert answer["choices"] == alone[requests.index(request)]
