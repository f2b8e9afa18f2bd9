"""The Python half of the page's worker (engine/worker.js): one engine, driven by its messages."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from typing import Any

from zllm.backend.selftest.speed import seconds_per_weight
from zllm.embedded import Engine
from zllm.errors import BackendError, RequestError, ZllmError
from zllm.runtime.compose import create_backend, renew_device

ROWS = 8  # of the picture of a token
CACHE_TOKENS = 4096  # of all chats together: a page's memory is short
LANES = 2  # a page has one chat; another request may run beside it

# Ops by the names that a visitor may know.
NAMES = {
    "linear": "matrix products",
    "norm_linear": "matrix products",
    "gated_linear": "feed-forward",
    "norm_gated_linear": "feed-forward",
    "rope_append": "positions, cache",
    "attend": "attention",
    "attend_latent": "attention",
    "rms_norm": "norms",
    "sample": "choosing a token",
    "experts": "experts",
    "embed": "embedding",
}

_engine: Engine | None = None
_stopped: set[int] = set()
_why = ""  # the backend was chosen


async def load(path: str, options: str, progress: Callable[[int, int], None]) -> str:
    """Open the model at `path`; returns what `info` does."""
    global _engine
    wanted = json.loads(options)
    backend = wanted.get("backend", "auto")
    global _why
    _why = ""
    if backend == "auto":
        backend, _why = await _faster()
    if backend == "webgpu":
        await renew_device()
    _engine = Engine(
        model=path,
        backend=backend,
        context=wanted.get("context"),
        cache_tokens=CACHE_TOKENS,
        lanes=LANES,
        progress=progress,
    )
    return await info()


async def _faster() -> tuple[str, str]:
    """(backend, why): the one that multiplies faster, by a measurement of less than a second."""
    try:
        await renew_device()
        gpu = create_backend("webgpu", lanes=1)
    except BackendError as error:
        return "oracle", str(error)
    cpu = create_backend("oracle", lanes=1)
    info = gpu.device.info  # type: ignore[attr-defined]
    name = f"{info.name} (a software adapter)" if info.software else info.name
    try:
        on_gpu, on_cpu = await seconds_per_weight(gpu), await seconds_per_weight(cpu)
    except BackendError as error:
        return "oracle", str(error)
    finally:
        gpu.close()
        cpu.close()
    ratio = f"{on_gpu / on_cpu:.2g} times as long on {name}"
    told = f"a matrix product takes {ratio}"
    return ("webgpu" if on_gpu < on_cpu else "oracle"), told


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
            "why": _why,
            "software": device.info.software if device else None,
            "features": sorted(device.info.features) if device else [],
            "context": engine.context,
            "vocabulary": engine.model.vocabulary,
            "memory": dict(engine.backend.memory()),
            "waited_s": getattr(device, "waited_s", None),
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
    """Each kernel in use against NumPy: a row to `post` as it is known."""
    async for what, outcome in _open().check_kernels():
        row = {
            "name": what,
            "right": outcome.right,
            "message": f"{outcome.worst:.0e}" if outcome.right else outcome.message,
        }
        post(json.dumps(row))


async def trace() -> str:
    """Milliseconds of a token by kind of op, and on the host."""
    engine = _open()
    shares = await engine.profile()
    named: Counter[str] = Counter()
    for name, seconds in shares:
        named[NAMES.get(name, name)] += 1000 * seconds  # type: ignore[assignment]
    rows = [{"name": name, "ms": ms} for name, ms in named.most_common(ROWS)]
    rest = sum(ms for _, ms in named.most_common()[ROWS:])
    if rest:
        rows.append({"name": "all else", "ms": rest})
    return json.dumps({"rows": rows, "total_ms": sum(named.values())})
