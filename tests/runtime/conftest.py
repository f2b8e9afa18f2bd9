from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.helpers.tiny_model import CASES
from zllm.embedded import Engine

Json = dict[str, Any]
LLAMA3 = CASES / "tiny-llama3"  # 64 tokens, context 256


@pytest.fixture(scope="module")
def plain() -> Iterator[Engine]:
    """Room for everything, one round at a time: what the others must agree with."""
    with Engine(model=LLAMA3, backend="oracle") as engine:
        yield engine


def random_requests(seed: int, count: int, *, longest: int = 40, answer: int = 20) -> list[Json]:
    """Requests of every kind: lengths, stops, minima, penalties, filters, several choices."""
    rng = np.random.default_rng(seed)
    requests: list[Json] = []
    for number in range(count):
        request: Json = {
            "tokens": rng.integers(0, 63, rng.integers(1, longest + 1)).tolist(),
            "max_tokens": int(rng.integers(1, answer + 1)),
            "temperature": float(rng.choice([0, 0.7, 1.0, 1.5])),
            "seed": number,
            "return_token_ids": True,
            "logprobs": int(rng.integers(0, 4)),
        }
        options: list[Json] = [
            {"stop_token_ids": rng.integers(0, 63, 8).tolist()},
            {"min_tokens": 6, "stop_token_ids": list(range(0, 63, 2))},
            {"ignore_eos": True},
            {"repetition_penalty": 1.3},
            {"frequency_penalty": 0.7, "presence_penalty": 0.4},
            {"top_k": 5},
            {"top_p": 0.7, "min_p": 0.02},
            {"logit_bias": {"7": 4.0, "9": -100}},
            {"n": 3},
        ]
        for choice in rng.choice(len(options), 3, replace=False):
            request |= options[int(choice)]
        requests.append(request)
    return requests


def essence(answer: Json) -> list[Any]:
    """What must not depend on how rounds were made."""
    return [(choice["token_ids"], choice["finish_reason"]) for choice in answer["choices"]]


def alone(engine: Engine, requests: list[Json]) -> list[list[Any]]:
    return [essence(engine.generate(request)) for request in requests]


def check_nothing_leaked(engine: Engine) -> None:
    """Idle, all lanes free, and all pages free once prefixes are evicted."""
    loop = engine._loop
    if loop.flights:  # of sequences that ended while it was on its way
        engine._step()
    assert loop.idle and not engine._jobs and not engine._changes
    assert sorted(loop._free_lanes) == list(range(loop.limits.lanes))
    held = Counter(page for cached in loop.prefixes._retained for page in cached.table.pages)
    assert all(loop.pool.references[page] == held[page] for page in range(loop.pool.pages))
    for cached in loop.prefixes._retained:
        assert len(cached.table.pages) == -(-cached.table.length // loop.pool.page_slots)
    while loop.prefixes.evict():
        pass
    assert loop.pool.free == loop.pool.pages - 1 and not any(loop.pool.references)
