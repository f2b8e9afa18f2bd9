from __future__ import annotations

from typing import Any

import pytest

from zllm.errors import RequestError
from zllm.request import Request, parse_request

V = 100
NAN, INF = float("nan"), float("inf")
HUGE = 10**5000  # more digits than Python prints
MESSAGES = [{"role": "user", "content": "hi"}]


def parsed(**fields: Any) -> Request:
    source = {} if {"messages", "prompt", "tokens"} & set(fields) else {"tokens": [1]}
    return parse_request({**source, **fields}, vocabulary=V)


def refused(**fields: Any) -> str:
    with pytest.raises(RequestError) as caught:
        parsed(**fields)
    text = str(caught.value)
    assert "\n" not in text and len(text) < 400
    return text


def test_defaults() -> None:
    request = parsed(seed=0)
    assert request == Request(tokens=(1,), seed=0)
    assert (request.n, request.max_tokens, request.temperature) == (1, None, None)
    assert request.top_logprobs == -1 and not request.chat


def test_seeds_differ_unless_given() -> None:
    assert parsed().seed != parsed().seed
    assert parsed(seed=7).seed == 7


GOOD: list[tuple[str, list[Any]]] = [
    ("max_tokens", [1, 10**9]),
    ("min_tokens", [0, 5]),
    ("temperature", [0, 1, 0.5, 2.0, 1e-7, 100]),
    ("top_p", [0.001, 1, 1.0]),
    ("top_k", [-1, 0, 1, 10**9]),
    ("min_p", [0, 0.05, 1]),
    ("repetition_penalty", [0.5, 1, 2]),
    ("frequency_penalty", [-2, 0, 2.0]),
    ("presence_penalty", [-2, 0, 2.0]),
    ("seed", [0, -1, 2**63, 2**64 - 1, -(2**63)]),
    ("n", [1, 128]),
    ("ignore_eos", [True, False]),
    ("return_token_ids", [True, False]),
    ("model", ["any"]),
    ("chat_template_kwargs", [{}, {"enable_thinking": False}]),
]


@pytest.mark.parametrize(("name", "values"), GOOD, ids=[name for name, _ in GOOD])
def test_good_values(name: str, values: list[Any]) -> None:
    for value in values:
        assert getattr(parsed(**{name: value}), name) == value


WRONG = ["1", [], {}, True, NAN, INF, -INF, HUGE, -HUGE, 10**400]
BAD: list[tuple[str, list[Any]]] = [
    ("max_tokens", ["1", [], {}, True, NAN, 1.0, 0, -1]),
    ("max_completion_tokens", ["1", True, 1.5, 0]),
    ("min_tokens", ["1", True, 1.0, -1, -HUGE]),
    ("temperature", [*WRONG, -0.1]),
    ("top_p", [*WRONG, 0, -0.1, 1.01]),
    ("top_k", ["1", [], True, 1.0, NAN, -2, -HUGE]),
    ("min_p", [*WRONG, -0.1, 1.01]),
    ("repetition_penalty", [*WRONG, 0, -1, 1e-300, 1e300]),
    ("frequency_penalty", [*WRONG, -2.1, 2.1]),
    ("presence_penalty", [*WRONG, -2.1, 2.1]),
    ("seed", ["1", True, 1.0, NAN, 2**64, -(2**63) - 1, HUGE]),
    ("n", ["1", True, 1.0, 0, -1, 129, HUGE]),
    ("ignore_eos", [0, 1, "true", []]),
    ("return_token_ids", [0, 1, "true", []]),
    ("stream", [0, "yes"]),
    ("model", [1, []]),
    ("chat_template_kwargs", [[], "x", {"messages": 1}, {"tools": 1}, {3: 1}]),
    ("stream_options", [True, [], {"include_usage": 1}, {"other": True}]),
    ("logprobs", ["1", 1.5, -1, 21, HUGE, []]),
    ("top_logprobs", ["1", True, 1.5, -1, 21, HUGE]),
    ("stop", [1, True, "", [""], ["a", ""], [1], {"a": 1}, [["a"]]]),
    ("stop_token_ids", [1, "1", ["1"], [1.0], [True], [-1], [V], [HUGE], [None], {"1": 1}]),
    ("logit_bias", [[], 1, "x", {"1": "2"}, {"1": True}, {"1": NAN}, {"1": 101}, {"1": -100.5}]),
    ("logit_bias", [{"a": 1}, {"-1": 1}, {str(V): 1}, {V: 1}, {"9" * 5000: 1}, {HUGE: 1}]),
    ("logit_bias", [{"1": HUGE}, {"²": 1}, {"٣": 1}, {"": 1}, {1.5: 1}, {" 1": 1}, {"1_0": 1}]),
    ("tools", [{}, "x", 1]),
]


@pytest.mark.parametrize(("name", "values"), BAD, ids=[name for name, _ in BAD])
def test_bad_values_name_their_field(name: str, values: list[Any]) -> None:
    for value in values:
        assert name in refused(**{name: value})


@pytest.mark.parametrize(
    "fields",
    [
        {"tokens": []},
        {"tokens": 5},
        {"tokens": "12"},
        {"tokens": [1, "2"]},
        {"tokens": [1.0]},
        {"tokens": [True]},
        {"tokens": [V]},
        {"tokens": [-1]},
        {"tokens": [HUGE]},
        {"prompt": ""},
        {"prompt": 1},
        {"prompt": ["a"]},
        {"messages": []},
        {"messages": "hi"},
        {"messages": {"role": "user"}},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_bad_sources_name_their_field(fields: dict[str, Any]) -> None:
    assert next(iter(fields)) in refused(**fields)


def test_exactly_one_source() -> None:
    with pytest.raises(RequestError, match="exactly one of messages, prompt and tokens"):
        parse_request({}, vocabulary=V)
    with pytest.raises(RequestError, match="got messages and prompt"):
        parse_request({"messages": MESSAGES, "prompt": "x"}, vocabulary=V)
    with pytest.raises(RequestError, match="prompt and tokens"):
        parse_request({"prompt": "x", "tokens": [1]}, vocabulary=V)


def test_unknown_fields_are_named() -> None:
    text = refused(temprature=1, max_token=4)
    assert "max_token, temprature" in text
    assert "temperature" in text.split("known:")[1], "the right name is offered"
    assert "unknown field top-p" in refused(**{"top-p": 1})


@pytest.mark.parametrize("body", [None, [], "x", 3, [("prompt", "x")]])
def test_a_request_is_an_object(body: Any) -> None:
    with pytest.raises(RequestError, match="JSON object"):
        parse_request(body, vocabulary=V)


def test_null_is_left_out() -> None:
    given = dict.fromkeys(("temperature", "stop", "logprobs", "n", "tools", "prompt"))
    assert parsed(**given, tokens=[1], seed=1) == parsed(seed=1)


def test_lists_and_maps() -> None:
    assert parsed(stop="a").stop == ("a",)
    assert parsed(stop=["a", "b"]).stop == ("a", "b")
    assert parsed(stop=[]).stop == ()
    assert parsed(stop_token_ids=[0, V - 1]).stop_token_ids == (0, V - 1)
    assert parsed(logit_bias={"3": -100, 4: 100}).logit_bias == {3: -100.0, 4: 100.0}
    assert parsed(stream_options={"include_usage": True}).include_usage
    assert not parsed(stream_options={"include_usage": None}).include_usage
    assert parsed(max_completion_tokens=3).max_tokens == 3
    assert parsed(stream=True, seed=1) == parsed(seed=1), "the method called decides"


def test_logprobs_of_chats_and_completions() -> None:
    assert parsed(messages=MESSAGES, logprobs=True).top_logprobs == 0
    assert parsed(messages=MESSAGES, logprobs=True, top_logprobs=3).top_logprobs == 3
    assert parsed(messages=MESSAGES, logprobs=False).top_logprobs == -1
    assert parsed(messages=MESSAGES, top_logprobs=0).top_logprobs == -1
    assert parsed(prompt="x", logprobs=4).top_logprobs == 4
    assert parsed(prompt="x", logprobs=0).top_logprobs == 0
    assert "logprobs: true" in refused(messages=MESSAGES, top_logprobs=3)
    assert "logprobs" in refused(messages=MESSAGES, logprobs=3)
