"""What comes back from the device while it answers: one record per sequence and round."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from zllm.backend.contract import RecordLayout
from zllm.embedded import Engine

pytestmark = pytest.mark.vulkan

GOLDEN = Path(__file__).parents[1] / "data" / "golden"
PROMPT = [1 + at % 50 for at in range(100)]  # two chunks of prefill on a software adapter
TOKENS = 20


@dataclass
class Traffic:
    """Sizes of the answers that were mapped, and how often a buffer was read otherwise."""

    answers: list[int] = field(default_factory=list)
    maps: int = 0
    reads: int = 0


@pytest.fixture
def traffic(monkeypatch: pytest.MonkeyPatch) -> Traffic:
    from zllm.backend.webgpu.wgpu_device import WgpuDevice
    from zllm.backend.webgpu.wgpu_program import Ring, WgpuAnswer

    seen = Traffic()
    take, begin, read = Ring.take, WgpuAnswer.begin, WgpuDevice.read

    def taken(self: Any, size_bytes: int) -> Any:
        seen.answers.append(size_bytes)
        return take(self, size_bytes)

    def began(self: Any) -> None:
        seen.maps += 1
        begin(self)

    def was_read(self: Any, *args: Any) -> bytes:
        seen.reads += 1
        return read(self, *args)

    monkeypatch.setattr(Ring, "take", taken)
    monkeypatch.setattr(WgpuAnswer, "begin", began)
    monkeypatch.setattr(WgpuDevice, "read", was_read)
    return seen


@pytest.fixture(params=["llama", "glm5_next"])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    folder = GOLDEN / request.param
    with Engine(model=folder, backend="webgpu", context=192, lanes=2) as opened:
        opened.generate(asked(0))  # plans are made, kernels checked
        yield opened


def asked(salt: int, top: int = -1) -> dict[str, Any]:
    """A greedy request; `salt` keeps a prompt from being found in the cache."""
    fields = {"max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
    more = {} if top < 0 else {"logprobs": top}
    return {"tokens": [1 + salt, *PROMPT], **fields, **more}


@pytest.mark.parametrize("top", [-1, 3])
def test_one_record_a_round(engine: Engine, traffic: Traffic, top: int) -> None:
    engine.generate(asked(1, top))
    traffic.__init__()  # type: ignore[misc]
    answer = engine.generate(asked(2, top))
    assert answer["usage"]["completion_tokens"] == TOKENS
    record = 4 * RecordLayout(top).words
    rounds = [size for size in traffic.answers if size]
    assert rounds == [record] * TOKENS  # the prompt's last chunk draws the first
    chunks = len(traffic.answers) - len(rounds)
    assert 0 < chunks <= 3, "of the prompt before the last: they answer nothing"
    assert traffic.maps == len(traffic.answers)
    assert traffic.reads == 0


def test_two_sequences_share_a_readback(engine: Engine, traffic: Traffic) -> None:
    engine.generate_many([asked(3), asked(4)])
    traffic.__init__()  # type: ignore[misc]
    engine.generate_many([asked(5), asked(6)])
    record = 4 * RecordLayout(-1).words
    assert set(traffic.answers) <= {0, record, 2 * record}
    assert sum(traffic.answers) <= 2 * record * (TOKENS + 2)
    assert traffic.answers.count(2 * record) >= TOKENS - 4
    assert traffic.reads == 0


def test_nothing_is_allocated_per_token(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    backend: Any = engine.backend
    device = backend.device
    engine.generate(asked(7))
    made: list[int] = []
    real = type(device)._allocate

    def allocate(self: Any, size_bytes: int, *args: Any) -> Any:
        made.append(size_bytes)
        return real(self, size_bytes, *args)

    monkeypatch.setattr(type(device), "_allocate", allocate)
    held = {device.held_bytes}
    for _ in engine.stream(asked(8)):
        held.add(device.held_bytes)
    assert len(held) == 1
    assert not made
