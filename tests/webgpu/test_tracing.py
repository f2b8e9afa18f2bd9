"""Traced rounds: each kernel has a time and its bytes, and the answers stay what they were."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from zllm.backend.webgpu import bandwidth
from zllm.embedded import Engine
from zllm.runtime.compose import TRACED

pytestmark = pytest.mark.vulkan

PROMPT = list(range(1, 20))


@pytest.fixture
def engine(data_dir: Path) -> Iterator[Engine]:
    with Engine(model=data_dir / "golden" / "qwen3_moe", backend=TRACED, lanes=1) as opened:
        yield opened


def answer(engine: Engine, first: int) -> list[int]:
    request = {"tokens": [first, *PROMPT], "max_tokens": 4, "temperature": 0, "ignore_eos": True}
    found = engine.generate({**request, "return_token_ids": True})
    ids: list[int] = found["choices"][0]["token_ids"]
    return ids


def traced(engine: Engine, first: int) -> tuple[list[int], Any]:
    backend: Any = engine.backend
    backend.start_trace()
    ids = answer(engine, first)
    return ids, backend.end_trace(lambda at: (1, 20 + at))


def test_a_traced_round_gives_the_same_tokens(engine: Engine, data_dir: Path) -> None:
    with Engine(model=data_dir / "golden" / "qwen3_moe", backend="webgpu", lanes=1) as plain:
        expected = [answer(plain, first) for first in (50, 51)]
    assert [traced(engine, 50)[0], answer(engine, 51)] == expected


def test_work_before_a_round_is_not_of_it(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bandwidth, "BUSY_BYTES", 1 << 16)
    monkeypatch.setattr(bandwidth, "BUSY_COPIES", 3)
    backend: Any = engine.backend
    expected, rounds = traced(engine, 50)
    submitted: list[None] = []
    busy = bandwidth.busy_program(backend.device)
    submit = busy.submit

    def counted(step: memoryview) -> Any:
        submitted.append(None)
        return submit(step)

    monkeypatch.setattr(busy, "submit", counted)
    backend.device.busy = busy
    ids, again = traced(engine, 51)
    assert [len(kernels) for kernels in again] == [len(kernels) for kernels in rounds]
    assert len(submitted) == len(again) == len(ids) == len(expected)


def test_kernels_follow_each_other(engine: Engine) -> None:
    _, rounds = traced(engine, 50)
    assert len(rounds) == 4  # a prefill, and a token each
    backend: Any = engine.backend
    assert len(rounds[1]) == max(
        plan.dispatches for key, plan in engine._loop.plans._plans.items() if key.rows == key.seqs
    )
    for kernels in rounds:
        assert all(k.begin_ns <= k.end_ns for k in kernels)
        assert all(a.end_ns <= b.begin_ns for a, b in pairwise(kernels))
    assert rounds[0][-1].end_ns <= rounds[1][0].begin_ns
    # Milliseconds, whatever the ticks are: far less than a minute, more than a microsecond.
    assert 1e3 < rounds[-1][-1].end_ns - rounds[0][0].begin_ns < 6e10
    assert not backend.end_trace(lambda at: (1, 1))[4:]


def test_bytes_are_those_that_must_move(engine: Engine) -> None:
    _, (prefill, decode, *_) = traced(engine, 50)
    config = engine.model.checkpoint.config
    backend: Any = engine.backend
    share = config.chosen_experts / config.experts

    def of(kernels: Any, op: str, end: str) -> float:
        found = [k for k in kernels if k.op == op and k.weight.endswith(end)]
        layers = {k.weight for k in found}
        assert layers
        return float(sum(k.size_bytes for k in found) / len(layers))

    def held(end: str) -> int:
        sizes = [
            sum(bank.buffer.size_bytes for bank in banks)
            for name, banks in backend._banks.items()
            if name.endswith(end) and name.count("…") == ("…" in end)
        ]
        return sizes[0]

    o = held("layers.0.o")
    values = 4 * (config.heads * config.head_size + 2 * config.width)
    assert of(decode, "linear", ".o") == o + values
    rows = 32  # of the plan: the prompt's 20, padded
    assert of(prefill, "linear", ".o") == o + rows * values
    gate_up = next(n for n in backend._banks if "experts.0.gate" in n)
    experts = [k for k in decode if k.op == "experts"]
    banks = sum(
        bank.buffer.size_bytes
        for name in backend._banks
        if ".experts." in name
        for bank in backend._banks[name]
    )
    weights = sum(k.size_bytes for k in experts)
    assert share * banks < weights < share * banks + 4096 * len(experts)
    assert gate_up in {k.weight for k in experts}
    appended = next(k for k in decode if k.op == "rope_append")
    assert appended.weight == ""
    slot = backend.slot_bytes("full") / config.layers
    inputs = 4 * 2 * config.heads * config.head_size
    attend = next(k for k in decode if k.op == "attend")
    assert attend.size_bytes == 21 * slot + inputs
    operations = sum(k.operations for k in decode if k.weight.endswith(".o"))
    assert operations == config.layers * 2 * config.width * config.heads * config.head_size
