"""A backend that loses its device, anywhere in a round: requests go on from their token ids."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from zllm.backend.oracle.backend import OracleBackend
from zllm.backend.oracle.plan import OraclePlan
from zllm.embedded import Engine
from zllm.errors import BackendError, DeviceLost, GenerationError

pytestmark = pytest.mark.filterwarnings("ignore::zllm.errors.Notice")

GOLDEN = Path(__file__).parent / "data" / "golden"
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]
REQUESTS: list[dict[str, Any]] = [
    {"tokens": PROMPT, "max_tokens": 12, "temperature": 0, "logprobs": 2},
    {"tokens": PROMPT[:4], "max_tokens": 9, "temperature": 1.3, "seed": 5, "top_p": 0.9, "n": 2},
    {"tokens": PROMPT[2:], "max_tokens": 10, "seed": 8, "frequency_penalty": 0.7, "min_tokens": 6},
    {"tokens": PROMPT[5:], "max_tokens": 8, "temperature": 0, "logit_bias": {"7": 3.0}},
]


def engine(folder: str = "llama") -> Engine:
    return Engine(model=GOLDEN / folder, backend="oracle", context=64, lanes=3)


def essence(answer: dict[str, Any]) -> dict[str, Any]:
    """What does not differ from call to call; logprobs to a few digits, as a prefill sums them."""
    kept = {k: v for k, v in answer.items() if k not in ("id", "created")}
    return _rounded(kept)  # type: ignore[no-any-return]


def _rounded(x: Any) -> Any:
    if isinstance(x, dict):
        return {k: _rounded(v) for k, v in x.items()}
    if isinstance(x, list):
        return [_rounded(v) for v in x]
    return round(x, 3) if isinstance(x, float) else x


class Losses:
    """Loses the device at calls of one method of a class, counted from 0."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, kind: type, method: str, *at: int) -> None:
        self.calls, self.losses, self.at = 0, 0, set(at)
        real = getattr(kind, method)

        def lossy(*args: Any, **options: Any) -> Any:
            self.calls += 1
            if self.calls - 1 in self.at:
                self.losses += 1
                raise DeviceLost("submitting a round: the device is lost")
            return real(*args, **options)

        monkeypatch.setattr(kind, method, lossy)


@pytest.mark.parametrize("ahead", [1, 2])
@pytest.mark.parametrize("folder", ["llama", "kimi_linear"])
@pytest.mark.parametrize("at", [0, 1, 2, 5, 9])
def test_lost_at_a_submit(
    monkeypatch: pytest.MonkeyPatch, folder: str, at: int, ahead: int
) -> None:
    monkeypatch.setattr(OracleBackend, "rounds_in_flight", ahead)
    with engine(folder) as opened:
        expected = [essence(answer) for answer in opened.generate_many(REQUESTS)]
    with engine(folder) as opened:
        losses = Losses(monkeypatch, OraclePlan, "submit", at)
        got = [essence(answer) for answer in opened.generate_many(REQUESTS)]
        assert losses.losses == 1
        for answer, undisturbed in zip(got, expected, strict=True):
            assert answer["choices"] == undisturbed["choices"]


@pytest.mark.parametrize("method", ["write_lane", "copy_slots"])
def test_lost_while_a_sequence_is_admitted(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    requests = [REQUESTS[3], REQUESTS[1]]
    with engine() as opened:
        expected = [[essence(opened.generate(r))["choices"] for r in requests] for _ in range(2)]
    with engine() as opened:
        losses = Losses(monkeypatch, OracleBackend, method, 0)
        got = [[essence(opened.generate(r))["choices"] for r in requests] for _ in range(2)]
    assert losses.losses == 1
    assert got == expected


def test_a_stream_neither_repeats_nor_skips(monkeypatch: pytest.MonkeyPatch) -> None:
    request = REQUESTS[0] | {"return_token_ids": True}

    def pieces(chunks: list[dict[str, Any]]) -> list[int]:
        return [id for c in chunks for choice in c["choices"] for id in choice.get("token_ids", [])]

    async def collected(opened: Engine) -> list[dict[str, Any]]:
        return [chunk async for chunk in opened.astream(request)]

    with engine() as opened:
        expected = pieces(list(opened.stream(request)))
    with engine() as opened:
        losses = Losses(monkeypatch, OraclePlan, "submit", 4, 20)
        assert pieces(list(opened.stream(request))) == expected
        assert pieces(asyncio.run(collected(opened))) == expected
    assert losses.losses == 2  # once in each request
    assert len(expected) == request["max_tokens"]


def test_the_second_loss_is_an_error_and_the_engine_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with engine() as opened:
        expected = essence(opened.generate(REQUESTS[0]))["choices"]
        Losses(monkeypatch, OraclePlan, "submit", 2, 5)
        with pytest.raises(GenerationError, match="is lost twice in one request; check the driver"):
            opened.generate(REQUESTS[0])
        assert essence(opened.generate(REQUESTS[0]))["choices"] == expected


def test_what_cannot_be_opened_again_is_tried_at_the_next_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with engine() as opened:
        expected = essence(opened.generate(REQUESTS[0]))["choices"]
        with monkeypatch.context() as patch:
            Losses(patch, OraclePlan, "submit", 2)
            patch.setattr("zllm.opening.create_backend", _refuse)
            with pytest.raises(GenerationError, match="cannot be opened again: no device"):
                opened.generate(REQUESTS[0])
            with pytest.raises(BackendError, match="no device"):
                opened.generate(REQUESTS[0])
        assert essence(opened.generate(REQUESTS[0]))["choices"] == expected


def _refuse(*args: Any, **options: Any) -> Any:
    raise BackendError("no device")
