"""The engine as its users see it: requests and answers, streams, cancelling, closing."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers.tiny_model import CASES, P12, altered_copy
from tests.runtime.conftest import check_nothing_leaked
from zllm.embedded import Engine
from zllm.errors import BackendError, GenerationError, RequestError, ZllmError
from zllm.sampling import logprobs as log_softmax

Json = dict[str, Any]
CHAIN, LLAMA3 = CASES / "chain-a", CASES / "tiny-llama3"
TICKS: Json = {"prompt": "8", "temperature": 0}  # " tick", " tock" up to the context of 64
IDS: Json = {"tokens": P12, "temperature": 0, "ignore_eos": True, "return_token_ids": True}


@pytest.fixture(scope="module")
def chain() -> Iterator[Engine]:
    with Engine(model=CHAIN, backend="oracle") as engine:
        yield engine


@pytest.fixture(scope="module")
def llama3() -> Iterator[Engine]:
    with Engine(model=LLAMA3, backend="oracle") as engine:
        yield engine


def chat(content: str, **fields: Any) -> Json:
    return {"messages": [{"role": "user", "content": content}], "temperature": 0, **fields}


def choice_of(answer: Json) -> Json:
    choice: Json = answer["choices"][0]
    return choice


# Answers


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


# Sampling fields


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


# Bad input


def test_all_requests_are_checked_before_any_starts(llama3: Engine) -> None:
    good = {**IDS, "max_tokens": 1}
    for bad, text in (({"tokens": []}, "empty"), ({**IDS, "tpo_k": 1}, "tpo_k"), (3, "object")):
        with pytest.raises(RequestError, match=rf"requests\[1\].*{text}"):
            llama3.generate_many([good, bad, good])
    check_nothing_leaked(llama3)
    assert llama3.generate_many([]) == []


def test_bad_requests_are_refused_when_a_stream_is_asked_for(llama3: Engine) -> None:
    for make in (llama3.stream, llama3.astream):
        with pytest.raises(RequestError, match="nope"):
            make({**IDS, "nope": 1})
    check_nothing_leaked(llama3)


def test_a_folder_without_tokenizer_takes_token_ids(llama3: Engine) -> None:
    assert choice_of(llama3.generate({**IDS, "max_tokens": 3}))["text"] == ""
    stopping = {"tokens": [1], "stop": ["x"]}
    for request in ({"prompt": "hi"}, chat("hi"), stopping):
        with pytest.raises(ZllmError, match=r"tokenizer\.json") as caught:
            llama3.generate_many([{**IDS, "max_tokens": 1}, request])
        assert "\n" not in str(caught.value)
        check_nothing_leaked(llama3)


def test_a_damaged_message_is_named(chain: Engine) -> None:
    for messages in ([{}], [{"role": "user"}], ["hi"], [{"role": "no", "content": "x"}]):
        with pytest.raises(RequestError, match=r"messages\[0\]"):
            chain.generate({"messages": messages})


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_not_finite_give_one_line(tmp_path: Path, value: float) -> None:
    def damage(tensors: dict[str, Any]) -> None:
        tensors["model.embed_tokens.weight"][5, 3] = value

    folder = altered_copy(LLAMA3, tmp_path / "m", tensors=damage)
    with Engine(model=folder, backend="oracle") as engine:
        bad, good = {**IDS, "tokens": [1, 5, 2]}, {**IDS, "tokens": [1, 2], "max_tokens": 2}
        for call in (engine.generate, lambda request: list(engine.stream(request))):
            with pytest.raises(GenerationError, match="not finite") as caught:
                call(bad)
            assert "\n" not in str(caught.value)
        before = engine.generate({**good, "max_tokens": 1})
        with pytest.raises(GenerationError):
            engine.generate_many([good, bad, good])
        again = engine.generate({**good, "max_tokens": 1})
        assert choice_of(again)["token_ids"] == choice_of(before)["token_ids"]
        check_nothing_leaked(engine)


@pytest.mark.parametrize("options", [{"lanes": 0}, {"lanes": -1}, {"cache_tokens": 0}])
def test_an_engine_without_room_is_refused(options: dict[str, int]) -> None:
    with pytest.raises(ZllmError, match=next(iter(options))):
        Engine(model=LLAMA3, backend="oracle", **options)


def test_unknown_backend_and_resident_form_list_the_known_ones() -> None:
    with pytest.raises(BackendError, match="oracle, webgpu, auto"):
        Engine(model=LLAMA3, backend="cuda")
    with pytest.raises(BackendError, match="f32, packed"):
        Engine(model=LLAMA3, backend="oracle", resident="f16")
    with pytest.raises(ZllmError, match="no file or folder"):
        Engine(model=CASES / "none", backend="oracle")


# Streams, cancelling, closing


def test_a_stream_closed_early_frees_its_lane() -> None:
    with Engine(model=CHAIN, backend="oracle", lanes=2) as engine:
        for taken in (0, 1, 2, 5):
            streams = [engine.stream({**TICKS, "n": 2}) for _ in range(3)]
            for stream in streams:
                for _ in range(taken):
                    next(stream)
                stream.close()  # type: ignore[attr-defined]
            check_nothing_leaked(engine)
        abandoned = engine.stream(TICKS)
        next(abandoned)
        del abandoned
        check_nothing_leaked(engine)


def test_streams_side_by_side_share_rounds(chain: Engine) -> None:
    both = [chain.stream({**TICKS, "max_tokens": 6}), chain.stream(chat("hi 1"))]
    texts = ["", ""]
    while any(texts[i] is not None and stream for i, stream in enumerate(both)):
        for i, stream in enumerate(both):
            chunk = next(stream, None) if stream else None
            if chunk is None:
                both[i] = None  # type: ignore[call-overload]
                continue
            choice = choice_of(chunk)
            texts[i] += choice["delta"].get("content", "") if i else choice["text"]
    assert texts == [" tick tock tick tock tick tock", " ok😀!!"]


def test_cancel_from_another_thread(llama3: Engine) -> None:
    seen = threading.Event()
    found: list[Json] = []

    def read() -> None:
        for chunk in llama3.stream({**IDS, "max_tokens": 200, "n": 2}):
            found.append(chunk)
            seen.set()

    thread = threading.Thread(target=read)
    thread.start()
    assert seen.wait(30)
    assert llama3.cancel(found[0]["id"])
    thread.join(30)
    assert not thread.is_alive()
    reasons = [choice_of(chunk)["finish_reason"] for chunk in found]
    assert reasons.count("cancelled") == 2 and len(found) < 390
    assert not llama3.cancel(found[0]["id"]) and not llama3.cancel("chatcmpl-none")
    check_nothing_leaked(llama3)


def test_threads_get_their_own_answers(llama3: Engine) -> None:
    requests = [{**IDS, "tokens": P12[:n], "max_tokens": 12} for n in range(1, 9)]
    expected = [choice_of(llama3.generate(request))["token_ids"] for request in requests]
    found: dict[int, list[int]] = {}

    def ask(at: int) -> None:
        found[at] = choice_of(llama3.generate(requests[at]))["token_ids"]

    threads = [threading.Thread(target=ask, args=(at,)) for at in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [found[at] for at in range(8)] == expected
    check_nothing_leaked(llama3)


@pytest.mark.parametrize("resident", ["f32", "packed"])
def test_close_is_idempotent_and_final(resident: str) -> None:
    engine = Engine(model=LLAMA3, backend="oracle", resident=resident)
    stream = engine.stream({**IDS, "max_tokens": 100})
    first = next(stream)
    engine.close()
    engine.close()
    assert [choice_of(chunk)["finish_reason"] for chunk in stream][-1] == "cancelled"
    for call in (
        lambda: engine.generate(IDS),
        lambda: engine.generate_many([IDS]),
        lambda: engine.stream(IDS),
        lambda: engine.logits([[1]]),
        lambda: asyncio.run(engine.agenerate(IDS)),
    ):
        with pytest.raises(RequestError, match="closed"):
            call()
    assert not engine.cancel(first["id"])
    assert engine.backend.memory()["weights"] == 0


# Async twins


def test_async_twins_equal_the_others(llama3: Engine) -> None:
    request = {**IDS, "max_tokens": 10}

    async def main() -> None:
        assert choice_of(await llama3.agenerate(request)) == expected
        answers = await llama3.agenerate_many([request, request])
        assert [choice_of(answer) for answer in answers] == [expected] * 2
        ids = [
            id async for chunk in llama3.astream(request) for id in choice_of(chunk)["token_ids"]
        ]
        assert ids == expected["token_ids"]

    expected = choice_of(llama3.generate(request))
    asyncio.run(main())
    check_nothing_leaked(llama3)


def test_two_async_streams_interleave(llama3: Engine) -> None:
    order: list[int] = []

    async def read(number: int) -> None:
        async for _ in llama3.astream({**IDS, "max_tokens": 30}):
            order.append(number)

    async def main() -> None:
        await asyncio.gather(read(0), read(1))

    asyncio.run(main())
    assert order.count(0) == order.count(1) == 30
    switches = sum(a != b for a, b in pairwise(order))
    assert switches > 10


def test_the_event_loop_is_never_blocked(llama3: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds of 0.1 s: timers go on while streams start, run, are cancelled and closed."""
    step = llama3._loop.step

    async def slow() -> None:
        time.sleep(0.1)
        await step()

    monkeypatch.setattr(llama3._loop, "step", slow)
    late: list[float] = []

    async def tick() -> None:
        while True:
            before = time.perf_counter()
            await asyncio.sleep(0.005)
            late.append(time.perf_counter() - before)

    async def take(stream: AsyncIterator[Json], count: int) -> Json:
        for _ in range(count):
            chunk = await anext(stream)
        return chunk

    async def main() -> None:
        ticking = asyncio.create_task(tick())
        first = llama3.astream({**IDS, "max_tokens": 60})
        running = asyncio.create_task(take(first, 9))
        await asyncio.sleep(0.15)
        second = llama3.astream({**IDS, "max_tokens": 60})  # starts during a round
        chunk = await take(second, 2)
        await asyncio.sleep(0.05)
        assert llama3.cancel(chunk["id"])
        await second.aclose()  # type: ignore[attr-defined]
        await running
        await first.aclose()  # type: ignore[attr-defined]
        ticking.cancel()

    asyncio.run(main())
    assert len(late) > 50 and sorted(late)[-3] < 0.08, sorted(late)[-5:]
    monkeypatch.undo()
    check_nothing_leaked(llama3)


def test_a_cancelled_task_frees_its_lane(llama3: Engine) -> None:
    async def main() -> None:
        task = asyncio.create_task(llama3.agenerate({**IDS, "max_tokens": 240}))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        unread = llama3.astream(IDS)
        await unread.aclose()  # type: ignore[attr-defined]

    asyncio.run(main())
    check_nothing_leaked(llama3)


# Memory


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
