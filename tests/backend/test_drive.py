"""Running awaits from code that cannot await."""

from __future__ import annotations

import asyncio
import sys

import pytest

from zllm.backend.drive import drive, unyielding


async def answer(wait: bool = False) -> int:
    if wait:
        await asyncio.sleep(0)
    return 7


def test_what_never_yields_is_run() -> None:
    assert drive(answer()) == 7
    assert unyielding(answer()) == 7


def test_it_is_run_in_a_page_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without pyodide.ffi, which this process has not."""
    monkeypatch.setattr(sys, "platform", "emscripten")
    assert unyielding(answer()) == 7


@pytest.mark.parametrize("run", [drive, unyielding])
def test_what_yields_is_an_error(run: object) -> None:
    assert callable(run)
    with pytest.raises(RuntimeError, match="yielded where it cannot wait"):
        run(answer(wait=True))
