"""Caches of latents and index keys under the loop: batches, reused prefixes, copied pages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.helpers.tiny_model import GOLDEN
from tests.runtime.conftest import alone, check_nothing_leaked, essence, random_requests
from zllm.embedded import Engine

FOLDERS = ["deepseek_v3", "deepseek_v32", "glm_moe_dsa", "minicpm3"]
GREEDY: dict[str, Any] = {"temperature": 0, "ignore_eos": True, "return_token_ids": True}


@pytest.fixture(scope="module", params=FOLDERS)
def folder(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def roomy(folder: str) -> Iterator[Engine]:
    """One request at a time, each from an empty cache: what the others must agree with."""
    with Engine(model=GOLDEN / folder, backend="oracle") as engine:
        engine._loop.prefixes.retain = lambda new: new.table.close()  # type: ignore[method-assign]
        yield engine


@pytest.fixture
def tight(folder: str) -> Iterator[Engine]:
    """Few lanes and pages: sequences wait, are preempted, share and copy pages."""
    with Engine(
        model=GOLDEN / folder, backend="oracle", lanes=4, context=112, cache_tokens=240
    ) as engine:
        engine.backend.prefill_rows = 7
        yield engine


def test_answers_do_not_depend_on_batches_and_reuse(roomy: Engine, tight: Engine) -> None:
    requests = random_requests(5, 24)
    expected = alone(roomy, requests)
    assert [essence(answer) for answer in tight.generate_many(requests)] == expected
    assert [essence(answer) for answer in tight.generate_many(requests)] == expected, "again"
    check_nothing_leaked(tight)


def test_a_conversation_goes_on_from_its_cache(roomy: Engine, tight: Engine) -> None:
    tokens = [9, 8, 7]
    for turn in range(5):
        request = {**GREEDY, "tokens": tokens, "max_tokens": 9}
        answer = tight.generate(request)
        assert essence(answer) == essence(roomy.generate(request))
        details = answer["usage"]["prompt_tokens_details"]
        assert details["cached_tokens"] == (0 if turn == 0 else len(tokens) - 4)
        tokens = [*tokens, *answer["choices"][0]["token_ids"], turn, 1, 2]
    check_nothing_leaked(tight)
