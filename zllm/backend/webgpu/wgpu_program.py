"""Programs of the wgpu-py driver: recording a round's pass, and fetching its answer."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from zllm.errors import BackendError

if TYPE_CHECKING:
    from zllm.backend.webgpu.wgpu_device import WgpuDevice

RING_DEPTH = 3  # answers outstanding; before a fourth the oldest is fetched
RING_KEPT_BYTES = 16 << 20  # larger readback buffers are freed after use
ALIVE_S = 0.5  # a mapping that a lost device owes never comes: look as often as this


@dataclass(slots=True, eq=False)
class WgpuBuffer:
    size_bytes: int
    label: str
    handle: Any


@dataclass(frozen=True, slots=True)
class Call:
    """A dispatch, ready to encode."""

    pipeline: Any
    group: Any
    grid: tuple[int, int, int]


class WgpuProgram:
    """Pipelines and bind groups made once; every submit encodes them anew, as WebGPU demands."""

    def __init__(
        self,
        device: WgpuDevice,
        calls: Sequence[Call],
        step: WgpuBuffer | None,
        result: WgpuBuffer | None,
        result_bytes: int,
    ) -> None:
        self._device = device
        self._step = step
        self._result = result
        self._result_bytes = result_bytes
        self._calls = calls  # a recorder may hold bare handles, which keep nothing alive
        self._record = (
            cffi_recorder(device.calls, calls) if device.calls else public_recorder(calls)
        )

    def submit(self, step: memoryview, /) -> WgpuAnswer:
        device = self._device
        device.check_open()
        answer = device.ring.take(self._result_bytes)
        try:
            with device.reported("submitting a round"):
                self._encode(step, answer.buffer)
                answer.begin()
        except BackendError:
            answer.abandon()
            raise
        return answer

    def _encode(self, step: memoryview, readback: WgpuBuffer) -> None:
        device = self._device
        queue = device.handle.queue
        if self._step is not None:
            queue.write_buffer(self._step.handle, 0, step)
        encoder = device.handle.create_command_encoder()
        compute = encoder.begin_compute_pass()
        self._record(compute)
        compute.end()
        if self._result is None:
            encoder.clear_buffer(readback.handle, 0, 4)  # something to wait for
        else:
            size = self._result_bytes
            encoder.copy_buffer_to_buffer(self._result.handle, 0, readback.handle, 0, size)
        queue.submit([encoder.finish()])
        device.staged_bytes = 0


def public_recorder(calls: Sequence[Call]) -> Callable[[Any], None]:
    def record(compute: Any) -> None:
        for call in calls:
            compute.set_pipeline(call.pipeline)
            compute.set_bind_group(0, call.group)
            compute.dispatch_workgroups(*call.grid)

    return record


def cffi_recorder(functions: tuple[Any, ...], calls: Sequence[Call]) -> Callable[[Any], None]:
    """The same calls on bare handles, a third of the time; errors still appear at `finish`."""
    set_pipeline, set_bind_group, dispatch, null = functions
    handles: list[tuple[Any, ...]] = []
    previous = None
    for call in calls:
        changed = None if call.pipeline is previous else call.pipeline._internal
        handles.append((changed, call.group._internal, *call.grid))
        previous = call.pipeline

    def record(compute: Any) -> None:
        handle = compute._internal
        for pipeline, group, x, y, z in handles:
            if pipeline is not None:
                set_pipeline(handle, pipeline)
            set_bind_group(handle, 0, group, 0, null)
            dispatch(handle, x, y, z)

    return record


class Ring:
    """Readback buffers by size, and the answers that nobody has fetched yet."""

    def __init__(self, device: WgpuDevice) -> None:
        self.device = device
        self._free: dict[int, list[WgpuBuffer]] = {}
        self._outstanding: deque[WgpuAnswer] = deque()

    def take(self, size_bytes: int) -> WgpuAnswer:
        while len(self._outstanding) >= RING_DEPTH:
            self._outstanding[0].wait()
        capacity = 1 << (max(size_bytes, 16) - 1).bit_length()
        free = self._free.setdefault(capacity, [])
        buffer = free.pop() if free else self.device.readback(capacity)
        answer = WgpuAnswer(self, buffer, size_bytes)
        self._outstanding.append(answer)
        return answer

    def give(self, answer: WgpuAnswer, *, reusable: bool) -> None:
        self._outstanding.remove(answer)
        buffer = answer.buffer
        if reusable and buffer.size_bytes <= RING_KEPT_BYTES:
            self._free[buffer.size_bytes].append(buffer)
        else:
            self.device.destroy(buffer)


class WgpuAnswer:
    """The result of one submit. Awaiting it blocks and never yields to an event loop."""

    def __init__(self, ring: Ring, buffer: WgpuBuffer, size_bytes: int) -> None:
        self.buffer = buffer
        self._ring = ring
        self._size_bytes = size_bytes
        self._promise: Any = None
        self._outcome: memoryview | BackendError | None = None

    def begin(self) -> None:
        """Ask for the mapping at once: the poll then waits for this submit, not for a later one."""
        self._promise = self.buffer.handle.map_async("READ_NOSYNC")

    def abandon(self) -> None:
        self._ring.give(self, reusable=False)

    def wait(self) -> memoryview:
        if self._outcome is None:
            self._outcome = self._fetch()
        if isinstance(self._outcome, BackendError):
            raise self._outcome
        return self._outcome

    def _fetch(self) -> memoryview | BackendError:
        handle = self.buffer.handle
        try:
            with self._ring.device.reported("waiting for a round"):
                self._await_mapping()
                data: memoryview = handle.read_mapped(0, max(self._size_bytes, 4))
                handle.unmap()
        except BackendError as error:
            self._ring.give(self, reusable=False)
            return error
        self._ring.give(self, reusable=True)
        return data[: self._size_bytes]

    def _await_mapping(self) -> None:
        settled = getattr(self._promise, "_thread_event", None)  # the public wait has no timeout
        while settled is not None and not settled.wait(ALIVE_S):
            self._ring.device.check_alive()
        self._promise.sync_wait()

    def __await__(self) -> Generator[Any, None, memoryview]:
        return self.wait()
        yield  # never reached: makes this a generator, as await demands
