"""Models with recurrent state: answers and states do not depend on rounds, reuse or cancelling."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.helpers.golden import recorded
from tests.helpers.tiny_model import CASES, GOLDEN, P1, P12
from tests.runtime.conftest import Json, alone, check_nothing_leaked, essence, random_requests
from zllm.embedded import Engine
from zllm.errors import RequestError
from zllm.kv_cache.paged import PagePool
from zllm.kv_cache.spec import StateSpec
from zllm.runtime.generation import Sequence
from zllm.runtime.loop import Loop

F32 = NDArray[np.float32]

KIMI, GLM = CASES / "tiny-kimi", GOLDEN / "glm5_next"
GREEDY: Json = {"temperature": 0, "ignore_eos": True, "return_token_ids": True}


class PoisonedPool(PagePool):
    """Fills every freed page or plane with NaN: whoever reads it again unwritten shows it."""

    def watch(self, engine: Engine, group: str) -> None:
        caches = engine.backend.caches.values()
        self.storage = [
            np.moveaxis(array, kept.slot_axis, 0)
            for kept in caches
            if kept.group == group
            for array in kept.arrays
        ]

    def release(self, page: int) -> None:
        super().release(page)
        if not self.references[page]:
            slots = slice(page * self.page_slots, (page + 1) * self.page_slots)
            for array in self.storage:
                array[slots] = np.nan


def opened(model: Path, *, ahead: int = 1, rows: int = 512, **options: int) -> Engine:
    engine = Engine(model=model, backend="oracle", **options)
    engine.backend.rounds_in_flight = ahead
    engine.backend.prefill_rows = rows
    loop: Loop = engine._loop
    loop.pool = PoisonedPool(loop.pool.pages, loop.pool.page_slots)
    loop.pool.watch(engine, "full")
    assert loop.planes is not None
    loop.planes = loop.prefixes._planes = planes = PoisonedPool(loop.planes.pages, 1)
    planes.watch(engine, "state")
    return engine


def check_no_plane_leaked(engine: Engine) -> None:
    """Planes are held by prefixes alone; when those are evicted, all are free."""
    loop: Loop = engine._loop
    if loop.flights:  # of sequences that ended while it was on its way
        engine._step()
    planes = loop.planes
    assert planes is not None
    held = [p for kept in loop.prefixes._retained for p in (kept.checkpoints or {}).values()]
    assert [held.count(plane) for plane in range(planes.pages)] == planes.references
    check_nothing_leaked(engine)
    assert planes.free == planes.pages - 1 and not any(planes.references)


def state_at(engine: Engine, tokens: list[int]) -> list[F32]:
    """The state after exactly `tokens`, of every layer, as some prefix holds it."""
    for kept in engine._loop.prefixes._retained:
        if kept.tokens[: len(tokens)].tolist() == tokens and len(tokens) in kept.checkpoints:
            plane = kept.checkpoints[len(tokens)]
            states = [c for c in engine.backend.caches.values() if c.group == "state"]
            return [storage.arrays[0][plane].copy() for storage in states]
    raise AssertionError(f"no checkpoint after {len(tokens)} tokens")


def digest(state: list[F32]) -> str:
    return hashlib.sha256(b"".join(array.tobytes() for array in state)).hexdigest()


def cached_tokens(answer: Json) -> int:
    count: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return count


def token_ids(answer: Json) -> list[int]:
    ids: list[int] = answer["choices"][0]["token_ids"]
    return ids


# A14

P1_IDS = [3, 62, 42, 11, 11, 6, 36, 11, 30, 45]
P1_LOGITS = [-4.40315, 0.82258, -3.7935]


def test_a14_a_one_token_prompt_after_another_request_in_the_same_slot() -> None:
    with opened(KIMI, lanes=1) as engine:
        for _ in range(3):
            engine.generate({**GREEDY, "tokens": P12, "max_tokens": 10})
            answer = engine.generate({**GREEDY, "tokens": P1, "max_tokens": 10})
            assert token_ids(answer) == P1_IDS and cached_tokens(answer) == 0
        assert engine.logits([P1])[0][-1][:3] == pytest.approx(P1_LOGITS, abs=1e-4)
        check_no_plane_leaked(engine)


@pytest.mark.parametrize("ahead", [1, 2])
def test_a14_planes_full_of_anything_do_not_show(ahead: int) -> None:
    with Engine(model=KIMI, backend="oracle", lanes=1) as engine:
        engine.backend.rounds_in_flight = ahead
        for storage in engine.backend.caches.values():
            if storage.group == "state":
                storage.arrays[0][:] = 1e3
        assert token_ids(engine.generate({**GREEDY, "tokens": P1, "max_tokens": 10})) == P1_IDS
        both = [{**GREEDY, "tokens": tokens, "max_tokens": 10} for tokens in (P12, P1)]
        assert token_ids(engine.generate_many(both)[1]) == P1_IDS


# Batches, chunks, look-ahead, preemption, cancelling

Setup = Callable[[Path], Engine]
SETUPS: dict[str, Setup] = {
    "one round": lambda model: opened(model, lanes=4),
    "look-ahead": lambda model: opened(model, ahead=2, lanes=4),
    "deep look-ahead": lambda model: opened(model, ahead=4, lanes=16),
    "chunks of 7": lambda model: opened(model, rows=7, lanes=5),
    "chunks of 1": lambda model: opened(model, rows=1, lanes=3),
    "tiny cache": lambda model: opened(model, lanes=8, cache_tokens=80),
    "tiny cache, chunks, look-ahead": lambda model: opened(
        model, ahead=3, rows=5, lanes=8, cache_tokens=96
    ),
    "one lane": lambda model: opened(model, ahead=2, lanes=1),
}
REQUESTS = random_requests(5, 16)
MODELS = [pytest.param(KIMI, id="kda"), pytest.param(GLM, id="kda-and-pools")]


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


@pytest.fixture(scope="module")
def plain_of(model: Path) -> Iterator[Engine]:
    with Engine(model=model, backend="oracle") as engine:
        yield engine


@pytest.fixture(scope="module")
def expected(plain_of: Engine) -> list[Any]:
    return alone(plain_of, REQUESTS)


@pytest.mark.parametrize("name", SETUPS)
def test_answers_in_a_batch_equal_those_alone(name: str, model: Path, expected: list[Any]) -> None:
    with SETUPS[name](model) as engine:
        answers = [essence(answer) for answer in engine.generate_many(REQUESTS)]
        assert answers == expected
        again = [essence(answer) for answer in engine.generate_many(REQUESTS[::-1])]
        assert again == expected[::-1], "with prompts cached"
        check_no_plane_leaked(engine)


@pytest.mark.parametrize("name", ["look-ahead", "tiny cache, chunks, look-ahead"])
def test_cancellation_at_random_leaves_no_trace(
    name: str, model: Path, expected: list[Any]
) -> None:
    rng = random.Random(4)
    with SETUPS[name](model) as engine:
        for _ in range(3):
            order = rng.sample(range(len(REQUESTS)), 12)
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
        check_no_plane_leaked(engine)


def test_preemption_happens_and_changes_nothing(model: Path, plain_of: Engine) -> None:
    requests = [{**GREEDY, "tokens": [n] * 20, "max_tokens": 40} for n in range(6)]
    with opened(model, ahead=2, lanes=6, cache_tokens=160) as engine:
        preempted: list[Sequence] = []
        preempt = engine._loop._preempt
        engine._loop._preempt = lambda s: (preempted.append(s), preempt(s))[1]  # type: ignore
        answers = [essence(answer) for answer in engine.generate_many(requests)]
        assert answers == alone(plain_of, requests)
        assert len(preempted) > 2
        check_no_plane_leaked(engine)


def test_more_sequences_at_once_than_planes_are_refused(model: Path) -> None:
    with opened(model, lanes=1) as engine:
        with pytest.raises(RequestError, match="8 planes of recurrent state"):
            engine.logits([[1, 2]] * 9)
        assert len(engine.logits([[1, 2]] * 7)) == 7
        check_no_plane_leaked(engine)


# Prefixes


def test_a_prompt_is_reused_up_to_its_last_token_every_time(model: Path) -> None:
    request = {**GREEDY, "tokens": [*range(30)], "max_tokens": 9}
    with opened(model, ahead=2) as engine:
        answers = [engine.generate(request) for _ in range(5)]
        assert [cached_tokens(answer) for answer in answers] == [0, 29, 29, 29, 29]
        assert all(essence(answer) == essence(answers[0]) for answer in answers)
        check_no_plane_leaked(engine)


def test_a_prefix_without_a_checkpoint_is_not_reused(model: Path, plain_of: Engine) -> None:
    with opened(model) as engine:
        engine.generate({**GREEDY, "tokens": [*range(30)], "max_tokens": 5})
        for length in (1, 7, 16, 28):
            request = {**GREEDY, "tokens": [*range(length), 50, 51], "max_tokens": 5}
            answer = engine.generate(request)
            assert cached_tokens(answer) == 0
            assert essence(answer) == essence(plain_of.generate(request))
        request = {**GREEDY, "tokens": [*range(29), 50, 51], "max_tokens": 5}
        answer = engine.generate(request)
        assert cached_tokens(answer) == 29, "all but the last token of the first prompt"
        assert essence(answer) == essence(plain_of.generate(request))
        check_no_plane_leaked(engine)


def test_prompts_that_share_a_long_beginning_reuse_its_chunks(
    model: Path, plain_of: Engine
) -> None:
    with opened(model, rows=8, ahead=2, lanes=2) as engine:
        engine.generate({**GREEDY, "tokens": [*range(30)], "max_tokens": 5})
        for length, reused in ((7, 0), (8, 8), (17, 16), (28, 24)):
            request = {**GREEDY, "tokens": [*range(length), 50, 51], "max_tokens": 5}
            answer = engine.generate(request)
            assert cached_tokens(answer) == reused, "up to the last whole chunk"
            assert essence(answer) == essence(plain_of.generate(request))
        check_no_plane_leaked(engine)


def test_a_conversation_reuses_all_but_the_last_token_of_its_answer(
    model: Path, plain_of: Engine
) -> None:
    with opened(model, ahead=2) as engine:
        tokens = [9, 8, 7]
        for turn in range(6):
            request = {**GREEDY, "tokens": tokens, "max_tokens": 11, "temperature": 1, "seed": 3}
            answer = engine.generate(request)
            assert essence(answer) == essence(plain_of.generate(request))
            assert cached_tokens(answer) == (0 if turn == 0 else len(tokens) - 4)
            tokens = [*tokens, *token_ids(answer), turn, 1, 2]
        check_no_plane_leaked(engine)


def test_choices_share_their_prompt(model: Path) -> None:
    with opened(model, lanes=4) as engine:
        rows: list[int] = []
        submit = engine._loop._submit
        engine._loop._submit = lambda pieces: (  # type: ignore[method-assign]
            rows.append(sum(piece.count for piece in pieces)),
            submit(pieces),
        )[1]
        request = {**GREEDY, "tokens": [*range(40)], "temperature": 1, "max_tokens": 8, "n": 4}
        answer = engine.generate({**request, "seed": 1})
        assert sum(rows) == 39 + 4 + 4 * 7, "the prompt once, but for its last token"
        assert len({tuple(choice["token_ids"]) for choice in answer["choices"]}) == 4
        check_no_plane_leaked(engine)


# States


@pytest.mark.parametrize("folder", ["kimi_linear", "glm5_next", "glm5_next_b"])
@pytest.mark.parametrize("rows", [1, 2, 3, 7, 13, 26, 64])
def test_the_state_after_any_split_is_the_recorded_one(folder: str, rows: int) -> None:
    golden = recorded(folder)
    tokens = golden["p0_ids"].astype(int).tolist()
    with opened(GOLDEN / folder, rows=rows) as engine:
        engine.generate({**GREEDY, "tokens": tokens, "max_tokens": 1})
        state = iter(state_at(engine, tokens))
        layers = [key for key in golden if key.startswith("p0_state_recurrent_state_")]
        for layer in sorted(int(key.rpartition("_")[2]) for key in layers):
            inputs = golden[f"p0_state_conv_state_{layer}"][:, 1:].T  # the oldest is not needed
            np.testing.assert_allclose(next(state), inputs, atol=2e-5)
            recurrent = golden[f"p0_state_recurrent_state_{layer}"]
            np.testing.assert_allclose(next(state), recurrent, atol=1e-5)
        assert next(state, None) is None


def fresh_states(model: Path, tokens: list[int], lengths: list[int], prompt: int) -> list[str]:
    """Digests after so many of `tokens`, the first `prompt` of them prefilled."""
    digests = []
    for length in lengths:
        with opened(model) as engine:
            request = {**GREEDY, "tokens": tokens[:prompt], "max_tokens": length - prompt + 1}
            assert token_ids(engine.generate(request))[:-1] == tokens[prompt:length]
            digests.append(digest(state_at(engine, tokens[:length])))
    return digests


def test_reuse_cancelling_and_look_ahead_leave_the_same_bits(model: Path) -> None:
    prompt = [*range(20)]
    with opened(model) as engine:
        answer = token_ids(engine.generate({**GREEDY, "tokens": prompt, "max_tokens": 30}))
    tokens = prompt + answer
    at_prompt, late = fresh_states(model, tokens, [20, 30], 20)
    with opened(model, ahead=2, lanes=2) as engine:
        for seed in range(3):
            other = {**GREEDY, "tokens": [seed, *prompt], "max_tokens": 12, "temperature": 1}
            engine.generate({**other, "seed": seed})
            engine.generate({**GREEDY, "tokens": prompt, "max_tokens": 1})
            assert digest(state_at(engine, tokens[:20])) == at_prompt
            stream = engine.stream({**GREEDY, "tokens": prompt, "max_tokens": 30})
            for _ in range(11):
                next(stream)
            stream.close()  # with a round in flight that reads the state and writes another
            assert digest(state_at(engine, tokens[:30])) == late
            answer_again = engine.generate({**GREEDY, "tokens": tokens[:31], "max_tokens": 19})
            assert cached_tokens(answer_again) == 30
            assert tokens[31:] == token_ids(answer_again)
        check_no_plane_leaked(engine)


def test_a_plane_holds_every_state_of_the_model() -> None:
    """What one sequence keeps, whatever its length: [kernel - 1, 3·H·d] and [H, d, d] a layer."""
    with opened(GLM) as engine:
        states = [
            c.arrays[0].shape[1:] for c in engine.backend.caches.values() if c.group == "state"
        ]
        assert states == [StateSpec((3, 144)).shape, StateSpec((4, 12, 12)).shape] * 3
