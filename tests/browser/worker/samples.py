"""What the host must notice: a test that fails, one that is skipped, and a fixture that fails."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture
def spoiled() -> Iterator[None]:
    yield
    raise RuntimeError("the end is wrong")


def test_right() -> None:
    pass


def test_wrong() -> None:
    assert 1 + 1 == 3, "one and one are not three"


def test_left_out() -> None:
    pytest.skip("nobody would see it")


def test_ends_badly(spoiled: None) -> None:
    pass


def test_of_no_such_fixture(absent: None) -> None:
    pass
