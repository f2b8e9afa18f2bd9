"""The measurement that decides between two backends."""

from __future__ import annotations

from tests.cross_backend.backends import BACKENDS
from zllm.backend.drive import drive
from zllm.backend.selftest.speed import seconds_per_weight


def test_a_backend_is_measured_in_a_moment() -> None:
    opened = BACKENDS["oracle"].open()
    assert 0 < drive(seconds_per_weight(opened.backend)) < 1e-6
