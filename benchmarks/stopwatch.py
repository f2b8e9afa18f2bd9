"""GPU time of dispatches, by timestamps around passes that other work keeps the clock up before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import wgpu

from zllm.backend.webgpu.device import Dispatch, Kernel
from zllm.backend.webgpu.wgpu_device import WgpuDevice, timestamp_period_ns
from zllm.backend.webgpu.wgpu_program import public_recorder

COPY = Kernel(
    "copy",
    "@group(0) @binding(0) var<storage, read> x: array<vec4<u32>>;\n"
    "@group(0) @binding(1) var<storage, read_write> y: array<vec4<u32>>;\n"
    "override SIZE: u32;\n"
    "@compute @workgroup_size(256) fn main(@builtin(global_invocation_id) id: vec3<u32>,\n"
    "    @builtin(num_workgroups) n: vec3<u32>) {\n"
    "    for (var i = id.x; i < SIZE; i += 256u * n.x) { y[i] = x[i]; }\n}\n",
    ("read", "write"),
)


WARM_BYTES, WARM_COUNT = 256 << 20, 200  # times four: about 0.1 s on an H200


class TimedDevice(WgpuDevice):
    """Compute passes can be timed."""

    more_features = ("timestamp-query",)


class Stopwatch:
    """GPU time by timestamps: a submit's clock on the host also holds what wgpu does before it."""

    def __init__(self, device: WgpuDevice) -> None:
        self.device = device
        self.period_ns = timestamp_period_ns(device.handle)
        self.queries = device.handle.create_query_set(type="timestamp", count=2)
        usage = wgpu.BufferUsage.QUERY_RESOLVE | wgpu.BufferUsage.COPY_SRC
        self.stamps = device.handle.create_buffer(size=256, usage=usage)
        self._heat: Dispatch | None = None

    def seconds(self, cycle: Sequence[Dispatch], count: int) -> float:
        """Of `count` dispatches, one after another; the best of three."""
        device = self.device
        calls = [device._bind(dispatch) for dispatch in cycle]
        record = public_recorder([calls[i % len(calls)] for i in range(count)])
        times = []
        for _ in range(4):
            encoder = device.handle.create_command_encoder()
            writes = {
                "query_set": self.queries,
                "beginning_of_pass_write_index": 0,
                "end_of_pass_write_index": 1,
            }
            compute = encoder.begin_compute_pass(timestamp_writes=writes)
            record(compute)
            compute.end()
            encoder.resolve_query_set(self.queries, 0, 2, self.stamps, 0)
            device.handle.queue.submit([encoder.finish()])
            raw = device.handle.queue.read_buffer(self.stamps, 0, 16)
            begun, ended = np.frombuffer(raw, np.uint64)
            times.append(float(ended - begun) * self.period_ns * 1e-9)
        return min(times[1:])

    def warm_up(self) -> None:
        """Keeps the GPU busy for a while: its clock falls while the host compiles."""
        if self._heat is None:
            a, b = (self.device.buffer(WARM_BYTES, "warm") for _ in range(2))
            kernel = replace(COPY, constants=(("SIZE", float(WARM_BYTES // 16)),))
            self._heat = Dispatch(kernel, (a, b), (4096, 1, 1))
        self.seconds([self._heat], WARM_COUNT)

    def paced(self, cycle: Sequence[Dispatch], least_s: float) -> float:
        """Seconds of one dispatch of the cycle, of a submit of at least `least_s`."""
        once = self.seconds(cycle, len(cycle)) / len(cycle)
        if not self.device.info.software:
            self.warm_up()
        turns = max(1, min(1024, int(least_s / max(once, 1e-7))) // len(cycle))
        return self.seconds(cycle, turns * len(cycle)) / (turns * len(cycle))


def copy_rate(watch: Stopwatch, size_bytes: int, least_s: float) -> float:
    """Bytes read and written a second."""
    device = watch.device
    a, b = (device.buffer(size_bytes, "copy") for _ in range(2))
    kernel = replace(COPY, constants=(("SIZE", float(size_bytes // 16)),))
    rates = []
    for groups in (4096, 16384, 65535):
        took = watch.paced([Dispatch(kernel, (a, b), (groups, 1, 1))], least_s)
        rates.append(2 * size_bytes / took)
    device.destroy(a)
    device.destroy(b)
    return max(rates)


def empty_seconds(watch: Stopwatch, least_s: float) -> float:
    """Of a dispatch that does next to nothing, behind the one before."""
    a, b = (watch.device.buffer(256, "empty") for _ in range(2))
    kernel = replace(COPY, constants=(("SIZE", 1.0),))
    return watch.paced([Dispatch(kernel, (a, b), (1, 1, 1))], least_s)
