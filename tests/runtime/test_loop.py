"""Answers do not depend on batches, look-ahead, chunks, preemption or reused prefixes."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest

from tests.runtime.conftest import (
    LLAMA3,
    Json,
    alone,
    check_nothing_leaked,
    essence,
    random_requests,
)
from zllm.backend.drive import drive
from zllm.embedded import Engine
from zllm.errors import GenerationError, RequestError
from zllm.kv_cache.paged import PagePool
from zllm.runtime.generation import Generation, Sequence
from zllm.runtime.loop import Loop

GREEDY: Json = {"temperature": 0, "ignore_eos": True, "return_token_ids": True}


class PoisonedPool(PagePool):
    """Fills every freed page with NaN: whoever reads it again unwritten gets NaN logits."""

    def poison(self, engine: Engine) -> None:
        self.storage = [array for kept in engine.backend.caches.values() for array in kept.arrays]

    def release(self, page: int) -> None:
        super().release(page)
        if not self.references[page]:
            slots = slice(page * self.page_slots, (page + 1) * self.page_slots)
            for array in self.storage:
                array[:, slots] = np.nan


def opened(*, ahead: int = 1, rows: int = 512, **options: int) -> Engine:
    engine = Engine(model=LLAMA3, backend="oracle", **options)
    engine.backend.rounds_in_flight = ahead
    engine.backend.prefill_rows = rows
    loop = engine._loop
    loop.pool = pool = PoisonedPool(loop.pool.pages, loop.pool.page_slots)
    pool.poison(engine)
    return engine


SETUPS: dict[str, Callable[[], Engine]] = {
    "one round": lambda: opened(lanes=4),
    "look-ahead": lambda: opened(ahead=2, lanes=4),
    "deep look-ahead": lambda: opened(ahead=4, lanes=16),
    "chunks of 7": lambda: opened(rows=7, lanes=5),
    "chunks of 1": lambda: opened(rows=1, lanes=3),
    "chunks and look-ahead": lambda: opened(ahead=2, rows=7, lanes=16),
    "tiny cache": lambda: opened(lanes=8, cache_tokens=80),
    "tiny cache and look-ahead": lambda: opened(ahead=2, lanes=8, cache_tokens=80),
    "tiny cache, chunks, look-ahead": lambda: opened(ahead=3, rows=5, lanes=8, cache_tokens=96),
    "one lane": lambda: opened(ahead=2, lanes=1),
}

REQUESTS = random_requests(1, 40)


@pytest.fixture(scope="module")
def expected(plain: Engine) -> list[object]:
    answers = alone(plain, REQUESTS)
    reasons = {reason for answer in answers for _, reason in answer}
    assert reasons == {"stop", "length"}
    return [*answers]


@pytest.mark.parametrize("name", SETUPS)
def test_answers_in_a_batch_equal_those_alone(name: str, expected: list[object]) -> None:
    with SETUPS[name]() as engine:
        answers = [essence(answer) for answer in engine.generate_many(REQUESTS)]
        assert answers == expected
        again = [essence(answer) for answer in engine.generate_many(REQUESTS[::-1])]
        assert again == expected[::-1], "with every prompt cached"
        check_nothing_leaked(engine)


@pytest.mark.parametrize("name", ["one round", "look-ahead", "tiny cache and look-ahead"])
def test_cancellation_at_random_leaves_no_trace(name: str, expected: list[object]) -> None:
    rng = random.Random(2)
    with SETUPS[name]() as engine:
        for _ in range(4):
            order = rng.sample(range(len(REQUESTS)), 16)
            streams = {number: engine.stream(REQUESTS[number]) for number in order}
            kept = set(order[::2])
            ids: dict[int, list[list[int]]] = {
                number: [[] for _ in range(REQUESTS[number].get("n", 1))] for number in order
            }
            while streams:
                number = rng.choice(list(streams))
                chunk = next(streams[number], None)
                if chunk is None or (number not in kept and rng.random() < 0.2):
                    streams.pop(number).close()
                    continue
                choice = chunk["choices"][0]
                ids[number][choice["index"]] += choice["token_ids"]
            for number in kept:
                assert ids[number] == [tokens for tokens, _ in expected[number]]
            check_nothing_leaked(engine)


def test_preemption_happens_and_changes_nothing(plain: Engine) -> None:
    requests = [{**GREEDY, "tokens": [n] * 20, "max_tokens": 60} for n in range(8)]
    with opened(ahead=2, lanes=8, cache_tokens=208) as engine:
        preempted: list[Sequence] = []
        preempt = engine._loop._preempt
        engine._loop._preempt = lambda s: (preempted.append(s), preempt(s))[1]  # type: ignore
        answers = [essence(answer) for answer in engine.generate_many(requests)]
        assert answers == alone(plain, requests)
        assert len(preempted) > 3
        check_nothing_leaked(engine)


def test_a_lone_sequence_that_fills_the_cache_ends_by_length() -> None:
    with opened(cache_tokens=48, lanes=2) as engine:
        answer = engine.generate({**GREEDY, "tokens": [1] * 40, "max_tokens": 100})
        assert answer["choices"][0]["finish_reason"] == "length"
        assert len(answer["choices"][0]["token_ids"]) == 9, "48 cached and one drawn"
        with pytest.raises(GenerationError, match="49 tokens and the cache holds 48"):
            engine.generate({**GREEDY, "tokens": [1] * 49})
        check_nothing_leaked(engine)


# Context


@pytest.mark.parametrize("ahead", [1, 2])
def test_the_answer_ends_exactly_at_the_context(ahead: int) -> None:
    with opened(ahead=ahead, context=32) as engine:
        for prompt in (1, 15, 16, 17, 30, 31):
            answer = engine.generate({**GREEDY, "tokens": [5] * prompt})
            choice, usage = answer["choices"][0], answer["usage"]
            assert choice["finish_reason"] == "length"
            assert len(choice["token_ids"]) == 32 - prompt == usage["completion_tokens"]
            assert usage["total_tokens"] == 32
        for prompt in (32, 33, 500):
            with pytest.raises(RequestError, match=f"{prompt} tokens.*context of 32"):
                engine.generate({**GREEDY, "tokens": [5] * prompt})


@pytest.mark.parametrize("ahead", [1, 2])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_max_tokens_is_exact(ahead: int, count: int) -> None:
    with opened(ahead=ahead) as engine:
        answer = engine.generate({**GREEDY, "tokens": [5], "max_tokens": count})
        assert len(answer["choices"][0]["token_ids"]) == count


def test_a_context_beyond_the_model_is_refused() -> None:
    for context in (257, 1, 0, -5):
        with pytest.raises(RequestError, match="256"):
            Engine(model=LLAMA3, backend="oracle", context=context)


# Prefixes


def cached_tokens(answer: Json) -> int:
    count: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return count


def test_the_longest_common_prefix_is_reused_and_no_more() -> None:
    prompt = [*range(40)]
    with opened() as engine:
        assert cached_tokens(engine.generate({**GREEDY, "tokens": prompt, "max_tokens": 1})) == 0
        for length in (1, 7, 15, 16, 17, 31, 32, 39):
            tokens = [*prompt[:length], 50, *prompt[length + 1 :]][:40]
            answer = engine.generate({**GREEDY, "tokens": tokens, "max_tokens": 1})
            assert cached_tokens(answer) == length
        assert cached_tokens(engine.generate({**GREEDY, "tokens": prompt, "max_tokens": 1})) == 39
        assert cached_tokens(engine.generate({**GREEDY, "tokens": [63, *prompt]})) == 0
        assert cached_tokens(engine.generate({**GREEDY, "tokens": prompt[:1]})) == 0
        check_nothing_leaked(engine)


def test_a_conversation_reuses_all_but_the_last_token_of_its_answer(plain: Engine) -> None:
    with opened(ahead=2) as engine:
        tokens = [9, 8, 7]
        for turn in range(6):
            request = {**GREEDY, "tokens": tokens, "max_tokens": 11, "temperature": 1, "seed": 3}
            answer = engine.generate(request)
            assert essence(answer) == essence(plain.generate(request))
            assert cached_tokens(answer) == (0 if turn == 0 else len(tokens) - 4)
            tokens = [*tokens, *answer["choices"][0]["token_ids"], turn, 1, 2]
        check_nothing_leaked(engine)


def test_a_running_sequence_is_a_prefix_too(plain: Engine) -> None:
    prompt = [*range(20, 50)]
    with opened(ahead=2) as engine:
        first = engine.stream({**GREEDY, "tokens": prompt, "max_tokens": 30})
        for _ in range(5):
            next(first)
        request = {**GREEDY, "tokens": [*prompt, 3, 4], "max_tokens": 8}
        answer = engine.generate(request)
        assert cached_tokens(answer) == 30
        assert essence(answer) == essence(plain.generate(request))
        rest = [id for chunk in first for id in chunk["choices"][0]["token_ids"]]
        whole = plain.generate({**GREEDY, "tokens": prompt, "max_tokens": 30})
        assert rest == whole["choices"][0]["token_ids"][5:]
        check_nothing_leaked(engine)


def test_choices_share_their_prompt() -> None:
    prompt = [*range(40)]
    with opened(lanes=4) as engine:
        rows: list[int] = []
        submit = engine._loop._submit
        engine._loop._submit = lambda pieces: (  # type: ignore[method-assign]
            rows.append(sum(piece.count for piece in pieces)),
            submit(pieces),
        )[1]
        request = {**GREEDY, "tokens": prompt, "temperature": 1, "seed": 1, "max_tokens": 8, "n": 4}
        answer = engine.generate(request)
        assert sorted(rows[:3]) == [1, 3, 40], "the prompt once, then its last token for the others"
        ids = [choice["token_ids"] for choice in answer["choices"]]
        assert len(set(map(tuple, ids))) == 4
        assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
        assert answer["usage"]["completion_tokens"] == 32
        assert answer["usage"]["prompt_tokens"] == 40
        first = engine.generate({**request, "n": 1})["choices"][0]["token_ids"]
        assert first == ids[0]


def test_logits_are_the_same_with_and_without_reuse() -> None:
    """The alternatives of each drawn token after a reused, a chunked and a fresh prefill."""
    request: Json = {**GREEDY, "tokens": [*range(37)], "max_tokens": 6, "logprobs": 20}
    tops: list[list[dict[str, float]]] = []
    with opened() as fresh, opened(rows=7) as chunked:
        for engine in (fresh, fresh, chunked):
            tops.append(engine.generate(request)["choices"][0]["logprobs"]["top_logprobs"])
        assert cached_tokens(fresh.generate(request)) == 36
    for other in tops[1:]:
        for first, second in zip(tops[0], other, strict=True):
            assert first.keys() == second.keys()
            assert [*first.values()] == pytest.approx([*second.values()], abs=1e-4)


# Fairness and states


def test_a_long_prompt_does_not_stop_running_answers() -> None:
    with opened(rows=4) as engine:
        running = engine.stream({**GREEDY, "tokens": [1], "max_tokens": 100})
        next(running)
        long = engine.stream({**GREEDY, "tokens": [2] * 120, "max_tokens": 1})
        for _ in range(20):
            assert next(running)["choices"][0]["token_ids"]
        job = next(iter(engine._jobs.values()))
        assert job.choices[0].sequence.answered < 25, "one token for each chunk, not a burst"
        long.close()
        running.close()
        check_nothing_leaked(engine)


def test_cancelling_twice_waiting_or_done_does_nothing() -> None:
    with opened(lanes=1) as engine:
        loop: Loop = engine._loop
        first = loop.add(Generation((1, 2), 5))
        second = loop.add(Generation((3, 4), 5))
        drive(loop.step())
        loop.cancel(second)
        assert second.finish == "cancelled" and second not in loop.waiting
        while not loop.idle:
            drive(loop.step())
        assert first.finish == "length" and len(first.drawn) == 5
        loop.cancel(first)
        loop.cancel(second, "stop")
        assert (first.finish, second.finish) == ("length", "cancelled")
        check_nothing_leaked(engine)


def test_a_choice_waits_for_the_prompt_of_the_first_even_if_that_is_cancelled() -> None:
    with opened(lanes=4, rows=4) as engine:
        loop: Loop = engine._loop
        first = loop.add(Generation(tuple(range(20)), 5))
        second = loop.add(Generation(tuple(range(20)), 5), after=first)
        drive(loop.step())
        assert second in loop.waiting
        loop.cancel(first)
        while not loop.idle:
            drive(loop.step())
        assert second.finish == "length" and second.cached_tokens == 4
        check_nothing_leaked(engine)
