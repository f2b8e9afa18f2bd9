"""The Python half of the page's worker (engine/worker.js): one engine, driven by its messages."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

from zllm.embedded import Engine
from zllm.errors import BackendError, RequestError, ZllmError

LANES = 2  # a page has one chat; another request may run beside it
PAGE_CONTEXT = 4096

_engine: Engine | None = None
_running: dict[int, tuple[str, ...]] = {}
_stopped: set[int] = set()


async def load(path: str, options: str, progress: Callable[[int, int], None]) -> str:
    """Open the model at `path`; returns what `info` does."""
    global _engine
    wanted = json.loads(options)
    backend = wanted.get("backend", "auto")
    problem = await _request_gpu() if backend != "oracle" else None
    if problem is not None:
        if backend == "webgpu":
            raise problem
        backend = "oracle"
    _engine = Engine(
        model=path,
        backend=backend,
        context=wanted.get("context"),
        lanes=LANES,
        progress=progress,
    )
    return await info()


async def _request_gpu() -> BackendError | None:
    import zllm_page

    from zllm.backend.webgpu.browser_device import request_device

    try:
        await request_device(zllm_page)
    except BackendError as error:
        return error
    return None


def _open() -> Engine:
    if _engine is None:
        raise RequestError("no model is loaded")
    return _engine


async def info() -> str:
    import zllm_page

    engine = _open()
    device = getattr(engine.backend, "device", None)
    return json.dumps(
        {
            "model": engine.model.name,
            "architecture": engine.model.checkpoint.architecture,
            "backend": engine.backend.name,
            "adapter": device.info.name if device else None,
            "software": device.info.software if device else None,
            "features": sorted(device.info.features) if device else [],
            "context": engine.context,
            "vocabulary": engine.model.vocabulary,
            "memory": dict(engine.backend.memory()),
            "heap_bytes": zllm_page.heapBytes(),
        }
    )


async def generate(id: int, request: str, post: Callable[[str], None]) -> None:
    """Stream an OpenAI-shaped request: every chunk as JSON to `post`."""
    engine = _open()
    body = {**json.loads(request), "stream": True}
    chunks = engine.astream(body)
    try:
        async for chunk in chunks:
            post(json.dumps(chunk))
            # NumPy never waits for anything, so that a stop could not come in between.
            await asyncio.sleep(0)
            if id in _stopped:
                break
    finally:
        _stopped.discard(id)
        await chunks.aclose()  # type: ignore[attr-defined]


def cancel(id: int) -> None:
    _stopped.add(id)


def count_tokens(request: str) -> int:
    from zllm.request import parse_request

    engine = _open()
    parsed = parse_request(json.loads(request), vocabulary=engine.model.vocabulary)
    return len(engine.model.prompt_ids(parsed))


async def unload() -> None:
    global _engine
    if _engine is not None:
        _engine.close()
        _engine = None


def lose_device() -> None:
    device: Any = getattr(_open().backend, "device", None)
    if device is None:
        raise ZllmError("the model runs on NumPy: there is no device to lose")
    device.lose()


async def check(post: Callable[[str], None]) -> None:
    raise NotImplementedError


async def trace() -> str:
    raise NotImplementedError


def now() -> float:
    return time.perf_counter()
