"""Sampling fields of a request."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.embedded.conftest import CHAIN, IDS, LLAMA3, TICKS, chat, choice_of
from tests.helpers.tiny_model import P12, altered_copy
from zllm.embedded import Engine
from zllm.sampling import logprobs as log_softmax


def test_logprobs_are_those_of_the_logits(llama3: Engine) -> None:
    answer = choice_of(llama3.generate({**IDS, "logprobs": 5, "max_tokens": 8}))
    ids, given = answer["token_ids"], answer["logprobs"]
    logits = llama3.logits([P12 + ids])[0][len(P12) - 1 : -1]
    for at, token in enumerate(ids):
        exact = log_softmax(logits[at])
        assert given["token_logprobs"][at] == pytest.approx(exact[token], abs=1e-4)
        best = np.argsort(-exact, kind="stable")[:5]
        assert [*given["top_logprobs"][at]] == [f"token_id:{token}" for token in best]
        tops = [*given["top_logprobs"][at].values()]
        assert tops == pytest.approx(exact[best].tolist(), abs=1e-4)
    assert given["tokens"] == [f"token_id:{token}" for token in ids]


def test_logprobs_come_before_penalties_bias_and_temperature(llama3: Engine) -> None:
    plain = choice_of(llama3.generate({**IDS, "logprobs": 3, "max_tokens": 1}))["logprobs"]
    bent = {"temperature": 0.3, "logit_bias": {"50": 50}, "repetition_penalty": 1.9, "seed": 1}
    other = choice_of(llama3.generate({**IDS, **bent, "logprobs": 3, "max_tokens": 1}))["logprobs"]
    assert other["top_logprobs"] == plain["top_logprobs"] and other["tokens"] == ["token_id:50"]


def test_logprobs_of_a_chat(chain: Engine) -> None:
    asked = chat("hi 6", logprobs=True, top_logprobs=4, max_tokens=1)
    (entry,) = choice_of(chain.generate(asked))["logprobs"]["content"]
    assert entry["token"] == " red" and entry["bytes"] == list(b" red")
    assert [top["token"] for top in entry["top_logprobs"]][:2] == [" red", " green"]
    probabilities = [np.exp(top["logprob"]) for top in entry["top_logprobs"]]
    assert probabilities == pytest.approx([0.5, 0.25, 0.125, 0.125], abs=0.01)
    none = choice_of(chain.generate(chat("hi 6", logprobs=True, max_tokens=1)))["logprobs"]
    assert none["content"][0]["top_logprobs"] == []


def test_more_alternatives_than_tokens(tmp_path: Path) -> None:
    def shrink(tensors: dict[str, Any]) -> None:
        for name in ("model.embed_tokens.weight", "lm_head.weight"):
            tensors[name] = tensors[name][:7].copy()

    folder = altered_copy(LLAMA3, tmp_path / "m", tensors=shrink, config={"vocab_size": 7})
    with Engine(model=folder, backend="oracle") as engine:
        request = {"tokens": [1], "max_tokens": 2, "logprobs": 20, "ignore_eos": True}
        for top in choice_of(engine.generate(request))["logprobs"]["top_logprobs"]:
            assert len(top) == 7 and sum(np.exp([*top.values()])) == pytest.approx(1, abs=1e-5)


def test_draws_follow_the_probabilities(chain: Engine) -> None:
    """ " red" .5, " green" .25, " blue" .125, " grey" .125: χ² with 3 degrees of freedom."""
    asked = {"prompt": "6", "temperature": 1, "n": 128, "max_tokens": 1, "seed": 3}
    texts = [choice["text"] for choice in chain.generate(asked)["choices"]]
    counts = np.array([texts.count(word) for word in (" red", " green", " blue", " grey")])
    expected = np.array([64, 32, 16, 16])
    assert counts.sum() == 128 and ((counts - expected) ** 2 / expected).sum() < 16.3


def test_seeds(llama3: Engine) -> None:
    def ids(**fields: Any) -> list[int]:
        found: list[int] = choice_of(llama3.generate({**IDS, "temperature": 1, **fields}))[
            "token_ids"
        ]
        return found

    assert ids(seed=4, max_tokens=12) == ids(seed=4, max_tokens=12)
    assert ids(seed=4, max_tokens=12) != ids(seed=5, max_tokens=12)
    assert ids(max_tokens=12) != ids(max_tokens=12), "another seed each time"
    assert ids(seed=-1, max_tokens=5) == ids(seed=2**64 - 1, max_tokens=5)


def test_logit_bias_forces_and_bans(llama3: Engine) -> None:
    forced = {**IDS, "max_tokens": 5, "logit_bias": {"17": 100}}
    assert choice_of(llama3.generate(forced))["token_ids"] == [17] * 5
    free = choice_of(llama3.generate({**IDS, "max_tokens": 10}))["token_ids"]
    banned = {**IDS, "max_tokens": 10, "logit_bias": {str(id): -100 for id in free}}
    assert not set(choice_of(llama3.generate(banned))["token_ids"]) & set(free)


@pytest.mark.parametrize("temperature", [0, 1, 1e6])
def test_min_tokens_holds_stops_back(llama3: Engine, temperature: float) -> None:
    """Every token but three is a stop, yet none comes before its time, however hot."""
    stops = list(range(60))
    asked = {**IDS, "temperature": temperature, "seed": 1, "stop_token_ids": stops}
    for least in (1, 5, 9):
        choice = choice_of(llama3.generate({**asked, "min_tokens": least, "max_tokens": 200}))
        assert choice["finish_reason"] == "stop" and len(choice["token_ids"]) > least
        assert set(choice["token_ids"][:-1][:least]) <= {60, 61, 62, 63}
        assert choice["token_ids"][-1] in stops


def test_min_tokens_and_stop_strings(chain: Engine) -> None:
    answer = chain.generate({**TICKS, "stop": " tock", "max_tokens": 9})
    assert choice_of(answer)["text"] == " tick"
    later = chain.generate({**TICKS, "stop": " tock", "min_tokens": 4, "max_tokens": 9})
    assert choice_of(later)["text"] == " tick tock tick"
    assert choice_of(later)["finish_reason"] == "stop"


def test_min_tokens_with_eos(chain: Engine) -> None:
    at_once = chain.generate({"prompt": "9", "temperature": 0, "return_token_ids": True})
    assert choice_of(at_once)["token_ids"] == [315] and choice_of(at_once)["text"] == ""
    held = {"prompt": "9", "temperature": 0, "min_tokens": 3, "max_tokens": 4}
    ids = choice_of(chain.generate({**held, "return_token_ids": True}))["token_ids"]
    assert len(ids) >= 3 and not {315, 316} & set(ids[:3])


def test_every_eos_of_the_checkpoint_stops_unless_ignored(chain: Engine) -> None:
    for eos in (315, 316):
        forced = {**TICKS, "logit_bias": {str(eos): 100}, "return_token_ids": True}
        assert choice_of(chain.generate(forced))["token_ids"] == [eos]
        ignored = choice_of(chain.generate({**forced, "ignore_eos": True, "max_tokens": 3}))
        assert ignored["token_ids"] == [eos] * 3 and ignored["finish_reason"] == "length"
        assert ignored["text"] == "", "a control token is no text"


def test_stop_token_ids_end_an_answer_and_are_no_text(chain: Engine) -> None:
    answer = choice_of(chain.generate({**TICKS, "stop_token_ids": [308], "return_token_ids": True}))
    assert (answer["text"], answer["finish_reason"]) == (" tick", "stop")
    assert answer["token_ids"] == [305, 308]
    ignored = {**TICKS, "stop_token_ids": [308], "ignore_eos": True}
    assert choice_of(chain.generate(ignored))["text"] == " tick", "they are not EOS"


def test_a_stop_string_settled_by_the_end(chain: Engine) -> None:
    """ "tick" lies inside the beginning of a longer stop that never comes."""
    asked = {**TICKS, "stop": [" tick tock tick no", "tock"], "max_tokens": 3}
    answer = choice_of(chain.generate(asked))
    assert (answer["text"], answer["finish_reason"]) == (" tick ", "stop")


def test_the_default_sampling_is_the_checkpoints(tmp_path: Path) -> None:
    says = {"temperature": 0.0, "eos_token_id": [305]}
    folder = altered_copy(CHAIN, tmp_path / "m", generation=says)
    with Engine(model=folder, backend="oracle") as engine:
        texts = {choice_of(engine.generate({"prompt": "hi 6"}))["text"] for _ in range(8)}
        assert texts == {" red"}
        asked = {"prompt": "hi 6", "temperature": 1, "n": 32, "max_tokens": 1}
        drawn = {choice["text"] for choice in engine.generate(asked)["choices"]}
        assert len(drawn) > 1, "a request wins"
        stopped = choice_of(engine.generate({"prompt": "8", "return_token_ids": True}))
        assert stopped["token_ids"] == [305]
