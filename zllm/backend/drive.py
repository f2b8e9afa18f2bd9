"""Running what awaits tickets from code that cannot await."""

from __future__ import annotations

import sys
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def drive(main: Coroutine[Any, Any, T]) -> T:
    """Run it to its end: natively its await blocks and never yields.

    In a page this needs a browser that can suspend Python (JSPI); RuntimeError elsewhere.
    """
    if sys.platform == "emscripten":
        from pyodide.ffi import run_sync

        done: T = run_sync(main)
        return done
    return unyielding(main)


def unyielding(main: Coroutine[Any, Any, T]) -> T:
    """Run what never yields, in any browser too. RuntimeError if it does."""
    try:
        main.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    raise RuntimeError(
        "the engine yielded where it cannot wait: what was awaited is no ticket that blocks"
    )
