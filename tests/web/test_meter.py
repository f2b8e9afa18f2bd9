"""Where a token's time goes, told while tokens come."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from zllm.backend.contract import Op
from zllm.web import meter
from zllm.web.meter import DEVICE, HOST, Meter, picture


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(meter, "perf_counter", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def named(shown: meter.Picture | None) -> dict[str, float]:
    assert shown is not None
    return {row["name"]: round(row["ms"], 6) for row in shown["rows"]}


def test_on_numpy_the_ops_of_single_tokens_are_timed(clock: Clock) -> None:
    backend = SimpleNamespace(observer=None)
    followed = Meter(backend, ())
    clock.now = 0.1
    assert followed.token() is None and backend.observer is None
    clock.now = 0.5
    assert followed.token() is None
    for name, seconds in (("linear", 0.02), ("attend", 0.01)):
        clock.now += seconds
        backend.observer(Op(name, (), (), None), [])
    clock.now += 0.005
    assert named(followed.token()) == {"matrix products": 20, "attention": 10, HOST: 5}
    assert backend.observer is None, "other tokens are not timed"
    clock.now += 0.1
    assert followed.token() is None


def test_an_answer_that_ends_leaves_nothing_behind(clock: Clock) -> None:
    backend = SimpleNamespace(observer=None)
    followed = Meter(backend, ())
    clock.now = 0.5
    followed.token()
    assert backend.observer is not None
    followed.close()
    assert backend.observer is None


@pytest.mark.parametrize(
    ("shares", "expected"),
    [
        ((), {DEVICE: 30, HOST: 20}),
        ((("linear", 2.0), ("attend", 1.0)), {"matrix products": 20, "attention": 10, HOST: 20}),
    ],
    ids=["unmeasured", "measured"],
)
def test_on_a_device_what_was_waited_is_shared_out(
    clock: Clock, shares: meter.Shares, expected: dict[str, float]
) -> None:
    device = SimpleNamespace(waited_s=7.0)
    followed = Meter(SimpleNamespace(device=device), shares)
    for _ in range(9):
        clock.now += 0.04
        assert followed.token() is None
    clock.now, device.waited_s = 0.5, 7.3
    assert named(followed.token()) == expected


def test_many_ops_end_as_all_else() -> None:
    shown = picture([(f"op {at}", 0.001) for at in range(12)], tokens=2)
    assert len(shown["rows"]) == meter.ROWS + 1
    assert shown["rows"][-1] == {"name": "all else", "ms": pytest.approx(2)}
    assert shown["total_ms"] == pytest.approx(6)
