"""What the WebGPU backend asks of a device.

Two drivers serve it natively and in the page; a third writes it down.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Literal, Protocol

from zllm.backend.webgpu.tuning import UNTUNED, Tuning
from zllm.errors import BackendError

if TYPE_CHECKING:
    from zllm.backend.contract import Op

Access = Literal["read", "write"]  # WGSL var<storage, read> or var<storage, read_write>


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """What was granted: WebGPU's default limits, natively as in browsers, but sizes as offered."""

    name: str
    software: bool  # lavapipe, SwiftShader: another kernel shape wins
    features: frozenset[str]  # of {"f16", "subgroups"}
    subgroup_size: int  # 0 without subgroups
    max_binding_bytes: int
    max_buffer_bytes: int
    max_grid: int  # workgroups per dimension
    max_workgroup_bytes: int
    max_invocations: int
    driver: str = ""
    tuning: Tuning = UNTUNED  # of matrix products


class Buffer(Protocol):
    """Device memory of a multiple of 4 bytes, never empty, zero at first."""

    size_bytes: int
    label: str


@dataclass(frozen=True, slots=True)
class Kernel:
    """A WGSL shader without directives (drivers add them) and the values of its overrides."""

    name: str
    wgsl: str
    access: tuple[Access, ...]  # of @group(0) @binding(0), 1, 2, …
    constants: tuple[tuple[str, float], ...] = ()
    entry: str = "main"


@dataclass(frozen=True, slots=True)
class Dispatch:
    """One grid of workgroups. No buffer may be bound both read and write: WebGPU refuses it."""

    kernel: Kernel
    buffers: tuple[Buffer, ...]  # one per binding, each whole
    grid: tuple[int, int, int]
    op: Op | None = field(default=None, compare=False, repr=False)  # that it is a part of


def check_dispatch(dispatch: Dispatch, info: DeviceInfo) -> None:
    """BackendError for what a device would refuse at submit without naming the kernel."""
    kernel = dispatch.kernel
    assert len(kernel.access) == len(dispatch.buffers), kernel.name
    for buffer, how in zip(dispatch.buffers, kernel.access, strict=True):
        if how == "write" and dispatch.buffers.count(buffer) > 1:
            raise BackendError(f"kernel {kernel.name}: {buffer.label} is written and bound twice")
    if not all(0 < size <= info.max_grid for size in dispatch.grid):
        raise BackendError(
            f"kernel {kernel.name}: a grid of {dispatch.grid} workgroups; each dimension must be "
            f"1 to {info.max_grid}"
        )


WORKGROUP_SIZE = re.compile(r"@workgroup_size\(([^)]*)\)")


def check_kernel(kernel: Kernel, info: DeviceInfo) -> None:
    """BackendError for more threads than granted: wgpu does not look at overrides."""
    values = dict(kernel.constants)
    for sizes in WORKGROUP_SIZE.findall(kernel.wgsl):
        words = [word.strip() for word in sizes.split(",") if word.strip()]
        threads = prod(values.get(word, int(word) if word.isdigit() else 1) for word in words)
        if threads > info.max_invocations:
            raise BackendError(
                f"kernel {kernel.name}: a workgroup of {threads:.0f} threads; {info.name} has at "
                f"most {info.max_invocations}"
            )


class Program(Protocol):
    """Dispatches prepared once (pipelines, bind groups) and replayed as one pass and one submit."""

    def submit(self, step: memoryview, /) -> Awaitable[memoryview]:
        """Write the step words, run, copy `result` to a readback; the answer is its bytes.

        The answer comes when the round is done, also where there is no `result`.
        """
        ...


class Device(Protocol):
    info: DeviceInfo
    held_bytes: int  # all buffers that live, readbacks included

    def buffer(self, size_bytes: int, label: str, /) -> Buffer: ...

    def write(self, buffer: Buffer, offset_bytes: int, data: memoryview, /) -> None:
        """In queue order: after all submitted work. Offset and size are multiples of 4."""
        ...

    def copy(self, copies: Sequence[tuple[Buffer, int, Buffer, int, int]], /) -> None:
        """(source, offset, target, offset, size) in bytes, in queue order; the buffers differ."""
        ...

    def read(self, buffer: Buffer, offset_bytes: int, size_bytes: int, /) -> bytes:
        """Wait for all work and download; for tests, tools and rare paths."""
        ...

    def fetch(self, ranges: Sequence[tuple[Buffer, int, int]], /) -> Awaitable[list[bytes]]:
        """`read` of several (buffer, offset, size), awaited: natively it blocks."""
        ...

    def program(
        self,
        dispatches: Sequence[Dispatch],
        /,
        *,
        step: Buffer | None = None,
        result: Buffer | None = None,
        result_bytes: int = 0,
    ) -> Program: ...

    def destroy(self, buffer: Buffer, /) -> None: ...

    def close(self) -> None: ...
