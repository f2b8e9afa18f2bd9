"""Recurrent state on WebGPU: answers do not depend on rounds, reuse or cancelling.

Seeded faults seen to fail: a kernel that writes the plane it reads, one that reads a plane at
position 0.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.helpers.tiny_model import CASES
from tests.runtime.conftest import Json, alone, essence, random_requests
from zllm.backend.webgpu.backend import WebGpuBackend
from zllm.embedded import Engine
from zllm.kv_cache.paged import PagePool

pytestmark = pytest.mark.vulkan

MODEL = CASES / "tiny-kimi"
REQUESTS = random_requests(5, 10, longest=30, answer=12)
GREEDY: Json = {"temperature": 0, "ignore_eos": True, "return_token_ids": True, "max_tokens": 5}
CHUNK = 8


class PoisonedPlanes(PagePool):
    """Fills every free plane with NaN, after the rounds that were submitted."""

    def __init__(self, pages: int, backend: WebGpuBackend) -> None:
        super().__init__(pages, 1)
        self.backend = backend
        for page in range(pages):
            self.poison(page)

    def release(self, page: int) -> None:
        super().release(page)
        if not self.references[page]:
            self.poison(page)

    def poison(self, page: int) -> None:
        for store in self.backend._stores.values():
            if store.group == "state":
                (buffer,), (size,) = store.buffers, store.slot_bytes
                nan = np.full(size // 4, np.nan, np.float32)
                self.backend.device.write(buffer, page * size, nan.data.cast("B"))


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    """Prefill in chunks of eight, one round ahead, three lanes, poison in every free plane."""
    with Engine(model=MODEL, backend="webgpu", lanes=3) as opened:
        backend, loop = opened.backend, opened._loop
        assert isinstance(backend, WebGpuBackend) and loop.planes is not None
        backend.rounds_in_flight, backend.prefill_rows = 2, CHUNK
        planes = PoisonedPlanes(loop.planes.pages, backend)
        loop.planes = loop.prefixes._planes = planes
        yield opened


@pytest.fixture(scope="module")
def oracle() -> Iterator[Engine]:
    with Engine(model=MODEL, backend="oracle") as opened:
        yield opened


@pytest.fixture(scope="module")
def expected(oracle: Engine) -> list[Any]:
    return alone(oracle, REQUESTS)


def test_batches_answer_as_the_oracle_does_alone(engine: Engine, expected: list[Any]) -> None:
    answers = [essence(answer) for answer in engine.generate_many(REQUESTS)]
    assert answers == expected
    again = [essence(answer) for answer in engine.generate_many(REQUESTS[::-1])]
    assert again == expected[::-1], "with prompts cached"


def test_a_state_is_reused_exactly_where_it_was_taken(engine: Engine, oracle: Engine) -> None:
    while engine._loop.prefixes.evict():
        pass
    engine.generate({**GREEDY, "tokens": [*range(30)]})
    for length, reused in ((7, 0), (8, 8), (17, 16), (28, 24), (29, 29)):
        request = {**GREEDY, "tokens": [*range(length), 50, 51]}
        answer = engine.generate(request)
        details = answer["usage"]["prompt_tokens_details"]
        assert details["cached_tokens"] == reused
        assert essence(answer) == essence(oracle.generate(request))


def test_cancelling_leaves_no_trace(engine: Engine, expected: list[Any]) -> None:
    rng = random.Random(4)
    streams = {number: engine.stream(request) for number, request in enumerate(REQUESTS)}
    ids: dict[int, list[list[int]]] = {
        number: [[] for _ in range(REQUESTS[number].get("n", 1))] for number in streams
    }
    while streams:
        number = rng.choice(list(streams))
        chunk = next(streams[number], None)
        if chunk is None or (number % 2 and rng.random() < 0.3):
            streams.pop(number).close()
            continue
        choice = chunk["choices"][0]
        ids[number][choice["index"]] += choice["token_ids"]
    for number in range(0, len(REQUESTS), 2):
        assert ids[number] == [tokens for tokens, _ in expected[number]]
