"""The async twins."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from itertools import pairwise

import pytest

from tests.embedded.conftest import IDS, Json, choice_of
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
