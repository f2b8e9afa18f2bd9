"""The async twins."""

from __future__ import annotations

import asyncio
import threading
from itertools import pairwise

import pytest

from tests.embedded.conftest import IDS, choice_of
from tests.runtime.conftest import check_nothing_leaked
from zllm.embedded import Engine


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
    """While a round is held, streams start, are cancelled and closed, and timers go on."""
    step = llama3._loop.step
    begun = threading.Event()
    release = threading.Event()

    async def held() -> None:
        begun.set()
        assert release.wait(60), "the event loop waited for the round"
        await step()

    monkeypatch.setattr(llama3._loop, "step", held)
    request = {**IDS, "max_tokens": 60}

    async def main() -> None:
        running = asyncio.create_task(anext(llama3.astream(request)))
        while not begun.is_set():
            await asyncio.sleep(0.001)
        second = llama3.astream(request)
        assert len(llama3.requests) == 2
        waiting = asyncio.create_task(anext(second))
        await asyncio.sleep(0.01)
        unread = llama3.astream(request)
        assert llama3.cancel(llama3.requests[1])
        await unread.aclose()  # type: ignore[attr-defined]
        release.set()
        await asyncio.gather(running, waiting)

    asyncio.run(main())
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
