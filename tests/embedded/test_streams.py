"""Streams, cancelling and closing, from several threads."""

from __future__ import annotations

import asyncio
import threading

import pytest

from tests.embedded.conftest import CHAIN, IDS, LLAMA3, TICKS, Json, chat, choice_of
from tests.helpers.tiny_model import P12
from tests.runtime.conftest import check_nothing_leaked
from zllm.embedded import Engine
from zllm.errors import RequestError


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
