"""How fast a kernel reads and writes memory here: what shares of bandwidth are shares of."""

from __future__ import annotations

import time

import numpy as np

from zllm.backend.webgpu.device import Buffer, Device, Dispatch, Kernel, Program
from zllm.backend.webgpu.kernels import strided_grid
from zllm.errors import BackendError
from zllm.kernel.wgsl.source import compose

# Larger than any cache; of a software adapter, larger than the CPU's.
HARDWARE_BYTES, SOFTWARE_BYTES = 1 << 30, 64 << 20
LEAST_BYTES = 16 << 20
CHUNK_BYTES = 8 << 20
BUSY_BYTES, BUSY_COPIES = 128 << 20, 1500
GROUPS = (2048, 8192, 32768, 65535)  # workgroups: which are enough differs from device to device
RUNS = 4


def copy_bandwidth(device: Device) -> float:
    """Bytes read plus bytes written per second by a copy kernel: the best of some grids and runs.

    BackendError if not even small buffers fit.
    """
    size = SOFTWARE_BYTES if device.info.software else HARDWARE_BYTES
    first, second = _two_buffers(device, min(size, device.info.max_binding_bytes // 256 * 256))
    _randomise(device, first)
    copies = 2 if device.info.software else 32
    best = 0.0
    for groups in GROUPS[:1] if device.info.software else GROUPS:
        program = _back_and_forth(device, first, second, groups, copies)
        _seconds(device, program, first)
        for _ in range(RUNS):
            seconds = _seconds(device, program, first)
            best = max(best, 2 * first.size_bytes * copies / seconds)
    device.destroy(first)
    device.destroy(second)
    return best


def busy_program(device: Device) -> Program:
    """Some 0.1 s of work for a large GPU, on two small buffers that live as long as the device."""
    first, second = _two_buffers(device, BUSY_BYTES)
    return _back_and_forth(device, first, second, GROUPS[1], BUSY_COPIES)


def copy_kernel() -> Kernel:
    """16 bytes a thread and turn."""
    return Kernel("copy_words", compose("copy_words"), ("read", "write"))


def _two_buffers(device: Device, size: int) -> tuple[Buffer, Buffer]:
    """As large as fits beside what is there already."""
    while True:
        made: list[Buffer] = []
        try:
            for name in ("bandwidth, from", "bandwidth, to"):
                made.append(device.buffer(size, name))
            return made[0], made[1]
        except BackendError:
            for buffer in made:
                device.destroy(buffer)
            size = size // 2 // 256 * 256
            if size < LEAST_BYTES:
                raise


def _randomise(device: Device, buffer: Buffer) -> None:
    """Zeros may move faster than data."""
    random = np.random.default_rng(0)
    chunk = random.integers(256, size=min(CHUNK_BYTES, buffer.size_bytes), dtype=np.uint8)
    for at in range(0, buffer.size_bytes, chunk.size):
        part = chunk[: buffer.size_bytes - at]
        device.write(buffer, at, part.data)


def _back_and_forth(
    device: Device, first: Buffer, second: Buffer, groups: int, copies: int
) -> Program:
    kernel = copy_kernel()
    grid = strided_grid(groups, device.info)
    pairs = ((first, second), (second, first))
    return device.program([Dispatch(kernel, pairs[i % 2], grid) for i in range(copies)])


def _seconds(device: Device, program: Program, buffer: Buffer) -> float:
    device.read(buffer, 0, 4)
    start = time.perf_counter()
    program.submit(memoryview(b""))
    device.read(buffer, 0, 4)
    return time.perf_counter() - start
