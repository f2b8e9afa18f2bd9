from __future__ import annotations

import pytest

from zllm.runtime.pace import LEAST_ROWS, Pace


def after(*seconds: float, rows: int = 64) -> list[int]:
    """Rows of each next round of a device that takes 64, where full rounds took so long."""
    pace, now, found = Pace(), 0.0, []
    for took in seconds:
        pace.done(min(rows, pace.most(64)), 64, now, now + took)
        now += took
        found.append(pace.most(64))
    return found


def test_quick_rounds_take_all() -> None:
    assert after(0.01, 0.4, 0.499) == [64, 64, 64]


@pytest.mark.parametrize(
    ("took", "rows"), [(0.51, 32), (0.99, 32), (1.01, 16), (3.0, 8), (60.0, LEAST_ROWS)]
)
def test_a_slow_round_makes_the_next_short_enough(took: float, rows: int) -> None:
    assert after(took) == [rows]


def test_rows_come_back_by_doubling() -> None:
    assert after(3.0, 0.1, 0.1, 0.1, 0.1) == [8, 16, 32, 64, 64]


def test_rows_do_not_swing() -> None:
    """What a half of a slow round takes is not quick enough to double it."""
    assert after(0.6, 0.3, 0.3) == [32, 32, 32]


def test_a_remainder_says_little() -> None:
    assert after(0.6, rows=32) == [64]
    pace = Pace(rows=8)
    pace.done(4, 64, 0.0, 0.001)
    assert pace.most(64) == 8


def test_a_round_begins_when_the_one_before_is_done() -> None:
    """Two in flight: the second was submitted long before it ran."""
    pace = Pace()
    pace.done(64, 64, 0.0, 0.4)
    pace.done(64, 64, 0.01, 0.8)
    assert pace.most(64) == 64
    pace.other_done(2.0)
    pace.done(64, 64, 0.02, 2.4)
    assert pace.most(64) == 64


def test_never_more_than_the_backend_takes() -> None:
    assert Pace(rows=32).most(16) == 16
