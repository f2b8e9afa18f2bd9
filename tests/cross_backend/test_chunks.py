"""A long prompt is fed in bounded rounds, and a cancelled one stops before the next."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.helpers.tiny_model import GOLDEN
from zllm.backend.contract import PlanKey
from zllm.embedded import Engine
from zllm.runtime.pace import Pace

Json = dict[str, Any]


class Watched:
    """The plans of an engine: the keys that were submitted, and what happens before a submit."""

    def __init__(self, engine: Engine) -> None:
        self.keys: list[PlanKey] = []
        self.valid_rows: list[int] = []
        self.before: Callable[[], None] = lambda: None
        self._get = engine._loop.plans.get
        engine._loop.plans.get = self.get  # type: ignore[method-assign]

    def get(self, key: PlanKey) -> Any:
        plan, watched = self._get(key), self

        class Told:
            layout = plan.layout

            def submit(self, step: Any) -> Any:
                watched.before()
                watched.keys.append(key)
                watched.valid_rows.append(int(step[plan.layout.offset["valid_rows"]]))
                return plan.submit(step)

        return Told()


@pytest.fixture
def engine(backend: str) -> Iterator[Engine]:
    found = Engine(model=GOLDEN / "llama", backend=backend, kv_dtype="f32")
    found.backend.prefill_rows = 16
    found._loop.pace = Pace(limit_s=math.inf)
    yield found
    found.close()


def request(engine: Engine, tokens: int, **fields: Any) -> Json:
    ids = [(7 * i + 3) % engine.model.vocabulary for i in range(tokens)]
    return {"tokens": ids, "temperature": 0, "max_tokens": 4, "ignore_eos": True, **fields}


def test_no_round_has_more_rows_than_the_backend_takes(engine: Engine) -> None:
    watched = Watched(engine)
    engine.generate(request(engine, 70))
    assert watched.valid_rows == [16, 16, 16, 16, 6, 1, 1, 1]
    # Chunks before the last ask for nothing: no head, no readback.
    assert [key.emit for key in watched.keys] == ["none"] * 4 + ["token"] * 4


def test_rounds_of_a_slow_device_become_short(engine: Engine) -> None:
    """To the least that a plan has. Not those of the oracle: its bits depend on no clock."""
    engine._loop.pace = Pace(limit_s=0.0)
    watched = Watched(engine)
    engine.generate(request(engine, 38))
    slow: Any = engine.backend
    short = slow.keeps_prefill and slow.device.info.software  # GPUs have none of fewer than 16
    chunks = [16, 8, 8, 6] if short else [16, 16, 6]
    assert watched.valid_rows == [*chunks, 1, 1, 1]


def test_a_cancelled_prompt_stops_before_its_next_chunk(engine: Engine) -> None:
    """Then another one runs as if nothing had been before."""
    whole = engine.generate(request(engine, 40, return_token_ids=True))
    watched = Watched(engine)
    stream = engine.stream(request(engine, 70, seed=1))
    id = next(iter(engine._jobs))

    def cancel_third() -> None:
        if len(watched.keys) == 2:
            assert engine.cancel(id)

    watched.before = cancel_third
    chunks = list(stream)
    assert chunks[-1]["choices"][0]["finish_reason"] == "cancelled"
    assert len(watched.keys) <= 3, "the chunk under way ends, no other begins"

    again = engine.generate(request(engine, 40, return_token_ids=True))
    assert again["choices"][0]["token_ids"] == whole["choices"][0]["token_ids"]
