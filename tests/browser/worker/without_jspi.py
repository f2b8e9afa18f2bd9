"""A chat in the page's worker where Python can never be suspended, as in browsers without JSPI."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

MODEL = "/suite/tests/data/cases/chain-a"
QUESTION = {"messages": [{"role": "user", "content": "now alpha"}], "temperature": 0}


def _refused(*_: Any) -> NoReturn:
    raise RuntimeError("run_sync is not for pages")


@contextmanager
def unsuspended() -> Iterator[None]:
    from pyodide import ffi

    kept = ffi.can_run_sync, ffi.run_sync
    ffi.can_run_sync, ffi.run_sync = (lambda: False), _refused
    try:
        yield
    finally:
        ffi.can_run_sync, ffi.run_sync = kept


async def chat() -> str:
    """The answer on each backend and what else a page asks for: JSON {backend: {…}}."""
    with unsuspended():
        return json.dumps({name: await _chat(name) for name in ("webgpu", "oracle")})


async def _chat(backend: str) -> dict[str, Any]:
    from zllm.web import worker

    progress: list[tuple[int, int, str]] = []
    options = json.dumps({"backend": backend})
    info = json.loads(await worker.load(MODEL, options, lambda *done: progress.append(done)))
    answers = []
    for number, rounds in enumerate((1, 2)):  # in flight: of a software adapter, of a GPU
        assert worker._engine is not None
        worker._engine.backend.rounds_in_flight = rounds
        chunks: list[str] = []
        await worker.generate(number, json.dumps(QUESTION), chunks.append, None)
        answers.append([_text(chunk) for chunk in chunks])
    checked: list[str] = []
    if backend == "webgpu":
        await worker.check(2, checked.append)
    await worker.unload()
    return {
        "backend": info["backend"],
        "progress": progress,
        "answers": answers,
        "checks": [json.loads(row) for row in checked],
    }


def _text(chunk: str) -> str:
    choices = json.loads(chunk)["choices"]
    return choices[0]["delta"].get("content") or "" if choices else ""
