"""The Python half of the page's worker (engine/worker.js): one engine, driven by its messages."""

from __future__ import annotations

import asyncio
import json
import warnings
from collections.abc import Callable
from contextlib import suppress
from math import prod
from typing import Any

from zllm.backend.selftest.speed import seconds_per_weight
from zllm.embedded import Engine
from zllm.errors import BackendError, Notice, RequestError, ZllmError
from zllm.fetch.store import cache_dir
from zllm.model import Model
from zllm.runtime.compose import create_backend, renew_device
from zllm.web.meter import Meter, Shares, picture

CACHE_TOKENS = 4096  # of all chats together: a page's memory is short
LANES = 2  # a page has one chat; another request may run beside it
# Of 4 GiB that a page may have, Python's own and a model's activations left out.
HEAP_BYTES = 3_400_000_000
F32_BYTES = 2_400_000_000  # more weights than that stay packed, which is slower
QUESTION = {"messages": [{"role": "user", "content": "What is the capital of France?"}]}
SMALLER = "take a smaller model, or a file with fewer bits a weight"

_engine: Engine | None = None
_running: dict[int, str] = {}  # the engine's requests by the page's
_stopped: set[int] = set()  # checks to end
_why = ""  # the backend was chosen
_checked = False  # the kernels are, once per browser and adapter
_shares: Shares = ()  # of a round's time on the device, once measured
_picture: dict[str, Any] = {"rows": [], "total_ms": 0}  # the last one


async def load(path: str, options: str, progress: Callable[[int, int, str], None]) -> str:
    """Open the model at `path`; returns what `info` does. A bad file leaves the earlier model."""
    global _engine, _why, _checked, _shares, _picture
    wanted = json.loads(options)
    backend = wanted.get("backend", "auto")
    model = Model(path)
    model.name = wanted.get("name", model.name)
    await unload()
    _why, _checked, _shares, _picture = "", False, (), {"rows": [], "total_ms": 0}
    auto = backend == "auto"
    if auto:
        backend, _why = await _faster()

    async def opened(backend: str, model: Model) -> Engine:
        global _checked
        engine = Engine(
            model=model,
            backend=backend,
            context=wanted.get("context"),
            cache_tokens=CACHE_TOKENS,
            lanes=LANES,
            resident=_resident(model) if backend == "oracle" else "f32",
            fallback=True,
            progress=lambda loaded, total: progress(loaded, total, "load"),
        )
        if backend == "webgpu":
            try:
                await engine.backend.device.settle()  # type: ignore[attr-defined]
                software = engine.backend.device.info.software  # type: ignore[attr-defined]
                _checked = wanted.get("check", not software)
                if _checked:
                    progress(1, 1, "check")
                    await _settle(engine)
            except BackendError:
                engine.close()
                raise
        return engine

    if backend == "webgpu":
        try:
            await renew_device()
            _engine = await opened(backend, model)
            return await info()
        except BackendError as error:
            if not auto:
                raise BackendError(f"{error}; or run it on the CPU (NumPy)") from None
            _why = str(error)
            model = Model(path)
            model.name = wanted.get("name", model.name)
    _engine = await opened("oracle" if backend == "numpy" else backend, model)
    return await info()


async def _settle(engine: Engine) -> None:
    """Check the kernels that this browser has not found right on this adapter before."""
    import zllm_page

    known = _verdicts()
    await engine.settle_kernels()
    if _verdicts() != known:
        await zllm_page.keepVerdicts(_verdicts())


def _verdicts() -> str:
    path = cache_dir() / "kernels.json"
    return path.read_text() if path.exists() else ""


def _resident(model: Model) -> str:
    """How NumPy keeps the weights. BackendError if they do not fit in a page."""
    file = model.checkpoint
    if 4 * sum(prod(tensor.shape) for tensor in file.tensors.values()) <= F32_BYTES:
        return "f32"
    if file.size_bytes <= HEAP_BYTES:
        return "packed"
    raise BackendError(
        f"the model's weights take {file.size_bytes / 1e9:.1f} GB, and a page has at most "
        f"{HEAP_BYTES / 1e9:.1f} GB for NumPy: {SMALLER}, or run it on a GPU"
    )


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
    if on_gpu < on_cpu:
        return "webgpu", f"it multiplies {on_cpu / on_gpu:.2g} times as fast as NumPy"
    return "oracle", f"it multiplies {on_gpu / on_cpu:.2g} times as fast as {name}"


def prepare() -> None:
    """While somebody writes the first question, its shaders are made."""
    with suppress(ZllmError):  # it will be said of the question
        _open().prepare(count_tokens(json.dumps(QUESTION)))


def _open() -> Engine:
    if _engine is None:
        raise RequestError("no model is loaded")
    return _engine


def loaded() -> str:
    """Whether a model is open: after a load that failed."""
    return json.dumps(_engine is not None)


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


def steps(
    id: int, request: str, post: Callable[[str], None], show: Callable[[str], None] | None
) -> Callable[[float], Any]:
    """`generate` for engine/worker.js, which calls what is returned until that says False.

    It takes the milliseconds that the last wait took, and returns what to wait for: a promise, a
    future, or None for a turn of the event loop.
    """
    main = generate(id, request, post, show)
    send = main.send
    started = False

    def step(waited_ms: float) -> Any:
        nonlocal started
        value, started = waited_ms if started else None, True
        try:
            return send(value)
        except StopIteration:
            return False

    return step


async def generate(
    id: int, request: str, post: Callable[[str], None], show: Callable[[str], None] | None
) -> None:
    """Stream an OpenAI-shaped request: chunks as JSON to `post`, pictures to `show` if given."""
    global _picture
    engine = _open()
    chunks = engine.astream({**json.loads(request), "stream": True})
    _running[id] = engine.requests[-1]
    meter = Meter(engine.backend, _shares)
    try:
        async for chunk in chunks:
            post(json.dumps(chunk))
            if meter.backend is not engine.backend:  # the device was lost
                meter = Meter(engine.backend, ())
            if seen := meter.token():
                _picture = seen
                if show is not None:
                    show(json.dumps(seen))
        if _checked:  # a longer prompt may have met kernels of its own
            await _settle(engine)
    finally:
        meter.close()
        del _running[id]


def cancel(id: int) -> None:
    """End a request at once, or a check after its kernel."""
    if id in _running:
        _open().cancel(_running[id])
    else:
        _stopped.add(id)


def count_tokens(request: str) -> int:
    from zllm.request import parse_request

    engine = _open()
    parsed = parse_request(json.loads(request), vocabulary=engine.model.vocabulary)
    return len(engine.model.prompt_ids(parsed))


async def unload() -> None:
    global _engine
    for id in list(_running):
        cancel(id)
    while _running:
        await asyncio.sleep(0.001)
    if _engine is not None:
        _engine.close()
        _engine = None


def lose_device() -> None:
    device: Any = getattr(_open().backend, "device", None)
    if device is None:
        raise ZllmError("the model runs on NumPy: there is no device to lose")
    device.lose()


async def check(id: int, post: Callable[[str], None]) -> None:
    """Each kernel in use against NumPy: a row to `post` as it is known."""
    _stopped.discard(id)
    async for what, outcome in _open().check_kernels():
        row = {
            "name": what,
            "right": outcome.right,
            "message": f"{outcome.worst:.0e}" if outcome.right else outcome.message,
        }
        post(json.dumps(row))
        if id in _stopped:
            break


async def trace() -> str:
    """Milliseconds of a token by kind of op: measured on a device, on NumPy as last seen."""
    global _picture, _shares
    if shares := await _open().profile():
        _shares, _picture = shares, picture(shares)
    return json.dumps(_picture)


def _tell(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    """What goes on differently than asked for, to the page."""
    import zllm_page

    if issubclass(category, Notice):
        zllm_page.notice(str(message).replace("the oracle", "NumPy").replace("oracle", "NumPy"))


warnings.simplefilter("always", Notice)
warnings.showwarning = _tell
