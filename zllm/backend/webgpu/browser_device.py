"""WebGPU in a page: the driver over navigator.gpu, in a worker. Its other half is engine/gpu.js.

Requesting a device is asynchronous, so the worker awaits `request_device` before it opens an
engine, and again after a loss.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Generator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from zllm.backend.webgpu.device import Buffer, DeviceInfo, Dispatch, Kernel, check_dispatch
from zllm.errors import BackendError, DeviceLost

# What a browser grants without being asked [WebGPU §3.6.2].
MAX_GRID, MAX_WORKGROUP_BYTES, MAX_INVOCATIONS = 65535, 16384, 256

_requested: list[Any] = []  # a device of gpu.js that no backend has taken yet


async def request_device(gpu: Any) -> None:
    """Ask the browser for a device, for the next `open_device`. gpu: the module gpu.js.

    BackendError if there is none.
    """
    from pyodide.ffi import JsException

    _requested.clear()
    try:
        _requested.append(await gpu.openGpu())
    except JsException as error:
        raise BackendError(f"no WebGPU here: {_words(error)}") from None


def open_device() -> BrowserDevice:
    """The device that was requested; where the browser can suspend Python (JSPI), or else one now.

    BackendError without one.
    """
    from pyodide.ffi import can_run_sync, run_sync

    if not _requested and can_run_sync():
        import zllm_page

        run_sync(request_device(zllm_page))
    if not _requested:
        raise BackendError("no WebGPU device was requested from the browser")
    return BrowserDevice(_requested.pop())


@dataclass(slots=True, eq=False)
class BrowserBuffer:
    size_bytes: int
    label: str
    handle: Any


class BrowserDevice:
    """Errors of JavaScript become BackendError, late ones at the next call."""

    def __init__(self, gpu: Any) -> None:
        from pyodide.ffi import JsException

        self._error = JsException
        self._gpu = gpu
        self._kernels: dict[Kernel, Any] = {}
        self.held_bytes = 0
        self.waited_s = 0.0  # for rounds to be done, in all
        self._closed = False
        self._submit = gpu.submit
        info, limits = gpu.info, gpu.info.limits
        self.info = DeviceInfo(
            name=info.name,
            software=info.software,
            features=frozenset(info.features.to_py()),
            subgroup_size=info.subgroupSize,
            max_binding_bytes=limits.maxStorageBufferBindingSize,
            max_buffer_bytes=limits.maxBufferSize,
            max_grid=MAX_GRID,
            max_workgroup_bytes=MAX_WORKGROUP_BYTES,
            max_invocations=MAX_INVOCATIONS,
            driver=info.driver,
        )

    def buffer(self, size_bytes: int, label: str, /) -> BrowserBuffer:
        assert size_bytes > 0 and size_bytes % 4 == 0, (label, size_bytes)
        handle = self._call(label, self._gpu.buffer, size_bytes, label)
        self.held_bytes += size_bytes
        return BrowserBuffer(size_bytes, label, handle)

    def write(self, buffer: Buffer, offset_bytes: int, data: memoryview, /) -> None:
        assert isinstance(buffer, BrowserBuffer)
        address, size = _place(data)
        self._call(f"writing {buffer.label}", self._gpu.write, buffer.handle, offset_bytes,
                   address, size)  # fmt: skip

    def stream(
        self,
        buffer: Buffer,
        offset_bytes: int,
        file: str,
        start: int,
        rows: int,
        row_bytes: int,
        padded_bytes: int,
    ) -> bool:
        """Rows of a file of the page to the device, past the Python heap, each padded with zeros.

        False if the page has no such file.
        """
        assert isinstance(buffer, BrowserBuffer)
        done = self._call(f"writing {buffer.label}", self._gpu.stream, file, start, buffer.handle,
                          offset_bytes, rows, row_bytes, padded_bytes)  # fmt: skip
        return bool(done)

    def copy(self, copies: Sequence[tuple[Buffer, int, Buffer, int, int]], /) -> None:
        flat: list[Any] = []
        for source, at, target, to, size in copies:
            assert isinstance(source, BrowserBuffer) and isinstance(target, BrowserBuffer)
            flat += [source.handle, at, target.handle, to, size]
        self._call("copying buffers", self._gpu.copy, _array(flat))

    def read(self, buffer: Buffer, offset_bytes: int, size_bytes: int, /) -> bytes:
        """Only where the browser can suspend Python (JSPI)."""
        from pyodide.ffi import run_sync

        (data,) = run_sync(self._fetch([(buffer, offset_bytes, size_bytes)]))
        return bytes(data)

    def fetch(self, ranges: Sequence[tuple[Buffer, int, int]], /) -> Awaitable[list[bytes]]:
        return self._fetch(ranges)

    async def _fetch(self, ranges: Sequence[tuple[Buffer, int, int]]) -> list[bytes]:
        flat: list[Any] = []
        for buffer, at, size in ranges:
            assert isinstance(buffer, BrowserBuffer)
            flat += [buffer.handle, at, size]
        self.check_open()
        try:
            parts = await self._gpu.fetch(_array(flat))
        except self._error as error:
            raise self._failure("reading the device", error) from None
        return [part.to_bytes() for part in parts]

    def program(
        self,
        dispatches: Sequence[Dispatch],
        /,
        *,
        step: Buffer | None = None,
        result: Buffer | None = None,
        result_bytes: int = 0,
    ) -> BrowserProgram:
        calls = []
        for dispatch in dispatches:
            check_dispatch(dispatch, self.info)
            handles = [b.handle for b in dispatch.buffers if isinstance(b, BrowserBuffer)]
            calls.append([self._kernel(dispatch.kernel), handles, list(dispatch.grid)])
        assert step is None or isinstance(step, BrowserBuffer)
        assert result is None or isinstance(result, BrowserBuffer)
        handle = self._call(
            "preparing a round",
            self._gpu.program,
            _array(calls),
            step.handle if step else None,
            result.handle if result else None,
            result_bytes,
        )
        return BrowserProgram(self, handle, result_bytes)

    def _kernel(self, kernel: Kernel) -> Any:
        if kernel not in self._kernels:
            self._kernels[kernel] = _object(
                key=str(len(self._kernels)),
                name=kernel.name,
                wgsl=kernel.wgsl,
                access=list(kernel.access),
                constants=dict(kernel.constants),
                entry=kernel.entry,
                # Repacking is waited for while weights are read; all else can be made side by side.
                now=kernel.name.startswith("repack"),
            )
        return self._kernels[kernel]

    def submit(self, program: Any, address: int, size: int, target: int) -> int:
        """The number of a round in gpu.js, which looks itself whether the device is in order.

        address, size: of its step words, read now. target: where its result goes once it is done.
        """
        try:
            number: int = self._submit(program, address, size, target)
        except self._error as error:
            raise self._failure("submitting a round", error) from None
        return number

    def done(self, round: int) -> Any:
        return self._gpu.done(round)

    def failure(self, round: int) -> BackendError:
        """Why a round did not go well."""
        try:
            self._gpu.failure(round)
        except self._error as error:
            return self._failure("waiting for a round", error)
        raise AssertionError("failure() of a round that went well")

    def forget(self, round: int) -> None:
        self._gpu.forget(round)

    def destroy(self, buffer: Buffer, /) -> None:
        assert isinstance(buffer, BrowserBuffer)
        self.held_bytes -= buffer.size_bytes
        handle = buffer.handle
        self._gpu.inOrder(None, handle.destroy.bind(handle))

    async def settle(self) -> None:
        """Until all that was asked for is done. BackendError if some of it failed."""
        try:
            await self._gpu.settled()
        except self._error as error:
            raise self._failure("filling the device", error) from None
        self.check_open()

    def lose(self) -> None:
        """As if the driver had failed: for tests."""
        self._gpu.close()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._gpu.close()

    def check_open(self) -> None:
        if self._closed:
            raise BackendError("the WebGPU device was closed")
        if self._gpu.lost is not None:
            raise lost_error(self._gpu.lost)
        if faults := self._gpu.takeFaults():
            raise BackendError(f"WebGPU: {faults[:600]}")

    def _call(self, what: str, function: Any, *args: Any) -> Any:
        self.check_open()
        try:
            return function(*args)
        except self._error as error:
            raise self._failure(what, error) from None

    def _failure(self, what: str, error: Exception) -> BackendError:
        if self._gpu.lost is not None:
            return lost_error(self._gpu.lost)
        return BackendError(f"{what}: {_words(error)[:600]}")


def lost_error(reason: str) -> DeviceLost:
    return DeviceLost(f"the GPU was lost ({reason})")


class BrowserProgram:
    """A plan that gpu.js holds: one call a round. Its words pass through memory of its own."""

    def __init__(self, device: BrowserDevice, handle: Any, result_bytes: int) -> None:
        self.device = device
        self._handle = handle
        self._step = memoryview(bytearray())
        self._step_place = 0, 0
        self._result_bytes = result_bytes
        self.results: list[Result] = []  # that no round in flight writes

    def submit(self, step: memoryview, /) -> BrowserAnswer:
        if step.nbytes != self._step.nbytes:
            self._step = np.empty(step.nbytes, np.uint8).data
            self._step_place = _place(self._step)
        self._step[:] = step
        result = self.results.pop() if self.results else Result(self._result_bytes)
        round = self.device.submit(self._handle, *self._step_place, result.address)
        return BrowserAnswer(self, round, result)


class Result:
    """Memory of the Python heap that gpu.js writes what came back of a round to."""

    def __init__(self, size_bytes: int) -> None:
        self.data = np.empty(size_bytes, np.uint8).data
        self.address, _ = _place(self.data)


class BrowserAnswer:
    """The result of one submit; awaiting it yields to the event loop.

    While the round is in flight, it keeps the memory of the result, or has gpu.js forget it.
    """

    def __init__(self, program: BrowserProgram, round: int, result: Result) -> None:
        self._program = program
        self._round = round
        self._result = result
        self._done = False

    def __await__(self) -> Generator[Any, Any, memoryview]:
        device = self._program.device
        if asyncio.current_task() is None:  # engine/worker.js runs this, and says how long it took
            waited_s = (yield self._round) / 1000
        else:
            began = time.perf_counter()
            well = yield from device.done(self._round).__await__()
            waited_s = time.perf_counter() - began if well else -1
        self._done = True
        if waited_s < 0:
            raise device.failure(self._round)
        device.waited_s += waited_s
        data = self._result.data.tobytes()
        self._program.results.append(self._result)
        return memoryview(data)

    def __del__(self) -> None:
        if not self._done:
            self._program.device.forget(self._round)


def _place(data: memoryview) -> tuple[int, int]:
    """(address in the Python heap, bytes)."""
    flat = np.frombuffer(data, np.uint8) if data.nbytes else np.empty(0, np.uint8)
    return int(flat.__array_interface__["data"][0]), data.nbytes


def _array(values: list[Any]) -> Any:
    from pyodide.ffi import to_js

    return to_js(values)


def _object(**values: Any) -> Any:
    from js import Object
    from pyodide.ffi import to_js

    return to_js(values, dict_converter=Object.fromEntries)


def _words(error: Exception) -> str:
    text = str(error)
    return text.removeprefix("Error: ").splitlines()[0] if text else type(error).__name__
