"""A wgpu device that can time each dispatch on its own: for traces, never for answers in haste."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from zllm.backend.webgpu.device import Buffer, Dispatch, Program
from zllm.backend.webgpu.wgpu_device import WgpuDevice, choose_adapter, timestamp_period_ns
from zllm.backend.webgpu.wgpu_program import Call, WgpuBuffer, WgpuProgram
from zllm.errors import BackendError

QUERIES = 4096  # of one query set [WebGPU §20.1]
QUERY_RESOLVE, COPY_SRC = 0x200, 0x4  # GPUBufferUsage
TIMESTAMP_BYTES = 8


@dataclass(frozen=True, slots=True)
class Timed:
    """One dispatch of a round and when the device ran it, on the device's clock."""

    dispatch: Dispatch
    begin_ns: float
    end_ns: float


def open_timing_device() -> TimingDevice:
    """On the adapter that `open_device` takes. BackendError if it cannot tell the time."""
    adapter = choose_adapter()
    if TimingDevice.more_features[0] not in adapter.features:
        raise BackendError(f"{adapter.info['device']} offers no timestamp queries: no trace")
    return TimingDevice(adapter)


class TimingDevice(WgpuDevice):
    """While `timing`, every dispatch is a pass between two timestamps, and each submit waits.

    busy: runs right before a timed round. A GPU that has been idle for some milliseconds is slow at
    first: the same kernel took four times as long on an H200.
    """

    more_features = ("timestamp-query",)

    def __init__(self, adapter: Any, /) -> None:
        self.timing = False
        super().__init__(adapter)
        self.busy: Program | None = None
        self.rounds: list[list[Timed]] = []
        self.period_ns = timestamp_period_ns(self.handle)

    def program(
        self,
        dispatches: Sequence[Dispatch],
        /,
        *,
        step: Buffer | None = None,
        result: Buffer | None = None,
        result_bytes: int = 0,
    ) -> WgpuProgram:
        plain = super().program(dispatches, step=step, result=result, result_bytes=result_bytes)
        return TimedProgram(self, plain, dispatches)


class TimedProgram(WgpuProgram):
    def __init__(
        self, device: TimingDevice, plain: WgpuProgram, dispatches: Sequence[Dispatch]
    ) -> None:
        super().__init__(device, plain._calls, plain._step, plain._result, plain._result_bytes)
        self._timing_device = device
        self._dispatches = dispatches

    def _encode(self, step: memoryview, readback: WgpuBuffer) -> None:
        device = self._timing_device
        if not device.timing:
            super()._encode(step, readback)
            return
        if self._step is not None:
            device.handle.queue.write_buffer(self._step.handle, 0, step)
        parts = [self._timed(part) for part in _parts(self._calls)]
        if device.busy is not None:
            device.timing = False
            device.busy.submit(memoryview(b""))
            device.timing = True
        device.handle.queue.submit([commands for commands, _ in parts])
        ticks = np.concatenate([_ticks(device.handle.queue, resolved) for _, resolved in parts])
        times = ticks.astype(np.float64) * device.period_ns
        timed = zip(self._dispatches, times.reshape(-1, 2).tolist(), strict=True)
        device.rounds.append([Timed(dispatch, *pair) for dispatch, pair in timed])
        if self._result is not None:
            device.copy([(self._result, 0, readback, 0, self._result_bytes)])

    def _timed(self, calls: Sequence[Call]) -> tuple[Any, Any]:
        """Commands, and the buffer that then holds the ticks before and after each of the calls."""
        handle = self._timing_device.handle
        count = 2 * len(calls)
        queries = handle.create_query_set(type="timestamp", count=count)
        size = TIMESTAMP_BYTES * count
        resolved = handle.create_buffer(size=size, usage=QUERY_RESOLVE | COPY_SRC)
        encoder = handle.create_command_encoder()
        for i, call in enumerate(calls):
            compute = encoder.begin_compute_pass(
                timestamp_writes={
                    "query_set": queries,
                    "beginning_of_pass_write_index": 2 * i,
                    "end_of_pass_write_index": 2 * i + 1,
                }
            )
            compute.set_pipeline(call.pipeline)
            compute.set_bind_group(0, call.group)
            compute.dispatch_workgroups(*call.grid)
            compute.end()
        encoder.resolve_query_set(queries, 0, count, resolved, 0)
        return encoder.finish(), resolved


def _ticks(queue: Any, resolved: Any) -> Any:
    ticks = np.frombuffer(queue.read_buffer(resolved), np.uint64)
    resolved.destroy()
    return ticks


def _parts(calls: Sequence[Call]) -> list[Sequence[Call]]:
    most = QUERIES // 2
    return [calls[first : first + most] for first in range(0, len(calls), most)]
