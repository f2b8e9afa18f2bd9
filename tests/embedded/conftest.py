"""The engine as its users see it: two small models, and requests to them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.helpers.tiny_model import CASES, P12
from zllm.embedded import Engine

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
