"""A device that is lost under running requests: they go on, without a gap or a repeat."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from zllm.embedded import Engine
from zllm.errors import BackendError, GenerationError, Notice
from zllm.runtime import compose

pytestmark = pytest.mark.vulkan

GOLDEN = Path(__file__).parents[1] / "data" / "golden"
GREEDY = {"tokens": [3, 1, 4, 1, 5], "max_tokens": 14, "temperature": 0, "return_token_ids": True}
SEEDED = GREEDY | {"tokens": [2, 7, 1], "temperature": 1.2, "seed": 3, "presence_penalty": 0.5}


def engine(folder: str = "llama", backend: str = "webgpu") -> Engine:
    return Engine(model=GOLDEN / folder, backend=backend, context=128, lanes=2, kv_dtype="f32")


def destroy(opened: Engine) -> None:
    backend: Any = opened.backend
    backend.device.handle.destroy()


def ids(answer: Any) -> list[int]:
    found: list[int] = answer["choices"][0]["token_ids"]
    return found


def streamed(
    opened: Engine, request: dict[str, Any], disturb: dict[int, Callable[[], None]]
) -> list[int]:
    """The token ids of a stream; `disturb` says what happens once so many have come."""
    tokens: list[int] = []
    for chunk in opened.stream(request):
        for choice in chunk["choices"]:
            tokens += choice.get("token_ids") or []
        if act := disturb.pop(len(tokens), None):
            act()
    return tokens


@pytest.fixture(params=["llama", "kimi_linear"])
def folder(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.mark.parametrize("request_", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_a_stream_goes_on(folder: str, request_: dict[str, Any]) -> None:
    with engine(folder) as opened:
        undisturbed = ids(opened.generate(request_))
        with pytest.warns(Notice, match="device is lost: opened anew"):
            got = streamed(opened, request_, {5: lambda: destroy(opened)})
        assert got == undisturbed
        assert ids(opened.generate(request_)) == undisturbed


def test_two_requests_go_on_together() -> None:
    with engine() as opened:
        undisturbed = [ids(answer) for answer in opened.generate_many([GREEDY, SEEDED])]
        rounds = iter(range(1000))
        step = opened._loop.step

        async def lossy() -> None:
            if next(rounds) == 6:
                destroy(opened)
            await step()

        opened._loop.step = lossy  # type: ignore[method-assign]
        with pytest.warns(Notice, match="opened anew"):
            answers = opened.generate_many([GREEDY, SEEDED])
        assert [ids(answer) for answer in answers] == undisturbed
        assert next(rounds) > 6


def test_a_round_in_flight_is_lost_with_the_device() -> None:
    """The answer that the device owes never comes: waiting for it must end."""
    with engine() as opened:
        undisturbed = ids(opened.generate(GREEDY))
        submit = opened._loop._submit

        def lossy(pieces: Any) -> None:
            submit(pieces)
            if pieces[0].first == 8:
                destroy(opened)

        opened._loop._submit = lossy  # type: ignore[method-assign]
        with pytest.warns(Notice, match="opened anew"):
            assert ids(opened.generate(GREEDY)) == undisturbed


def test_logits_begin_again() -> None:
    golden = np.load(GOLDEN / "llama" / "golden.npz")
    with engine() as opened:
        destroy(opened)
        with pytest.warns(Notice, match="opened anew"):
            (logits,) = opened.logits([golden["p0_ids"].tolist()])
    truth = golden["p0_truth"]
    assert np.abs(logits - truth).max() <= 1e-4 * np.abs(truth).max()


@pytest.mark.filterwarnings("ignore::zllm.errors.Notice")
def test_a_second_loss_ends_the_request_and_no_other() -> None:
    with engine() as opened:
        undisturbed = ids(opened.generate(GREEDY))
        losses = {3: lambda: destroy(opened), 6: lambda: destroy(opened)}
        with pytest.raises(GenerationError, match="lost twice in one request") as caught:
            streamed(opened, GREEDY, losses)
        assert "\n" not in str(caught.value)
        assert ids(opened.generate(GREEDY)) == undisturbed


def test_without_a_device_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with engine() as opened:
        undisturbed = ids(opened.generate(GREEDY))

        def vanish() -> None:
            destroy(opened)
            monkeypatch.setenv("ZLLM_WGPU_ADAPTER", "no such adapter")

        with pytest.raises(GenerationError, match="cannot be opened again: no WebGPU adapter"):
            streamed(opened, GREEDY, {3: vanish})
        with pytest.raises(BackendError, match="no WebGPU adapter is named"):
            opened.generate(GREEDY)
        monkeypatch.delenv("ZLLM_WGPU_ADAPTER")
        assert ids(opened.generate(GREEDY)) == undisturbed


@pytest.fixture
def auto(monkeypatch: pytest.MonkeyPatch) -> None:
    """`auto` takes a software adapter too, so that it can lose it."""
    real = compose._open_webgpu
    monkeypatch.setattr(compose, "_open_webgpu", lambda *args, software: real(*args, software=True))


@pytest.mark.usefixtures("auto")
@pytest.mark.parametrize("gone", [True, False], ids=["no adapter", "twice"])
def test_auto_goes_on_on_the_oracle(monkeypatch: pytest.MonkeyPatch, gone: bool) -> None:
    with engine(backend="auto") as opened:
        assert opened.backend.name == "webgpu"
        undisturbed = ids(opened.generate(GREEDY))

        def lose() -> None:
            destroy(opened)
            if gone:
                monkeypatch.setenv("ZLLM_WGPU_ADAPTER", "no such adapter")

        with pytest.warns(Notice, match="opened anew on oracle"):
            got = streamed(opened, GREEDY, {3: lose} if gone else {3: lose, 7: lose})
        assert got == undisturbed
        assert opened.backend.name == "oracle"
