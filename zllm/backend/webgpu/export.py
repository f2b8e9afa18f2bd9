"""A device that writes everything down, so that a page can replay it without Python.

`<name>.bin` holds the bytes written before the first round; `<name>.json` (version 1) the rest:

shaders   WGSL texts without directives
kernels   {name, shader, entry, access: "read" | "write" per binding, constants: {override: number}}
buffers   bytes of each
programs  {dispatches: [[kernel, [buffer per binding], [x, y, z]], …], step, result, resultBytes}
setup     what to do once, in order: ["write", buffer, offset, start in .bin, bytes],
          ["copy", source, offset, target, offset, bytes], ["run", program], ["destroy", buffer]
plans     name -> {program, key, words, offset: {step word: index}, records: int32 per sequence}
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Generator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from zllm.backend.contract import RecordLayout
from zllm.backend.webgpu.device import Buffer, DeviceInfo, Dispatch, Kernel, check_dispatch
from zllm.backend.webgpu.plan import WebGpuPlan
from zllm.errors import BackendError

# SwiftShader as Chromium offers it; limits are WebGPU's defaults.
SWIFTSHADER = DeviceInfo(
    name="swiftshader",
    software=True,
    features=frozenset({"subgroups"}),
    subgroup_size=4,
    max_binding_bytes=128 << 20,
    max_buffer_bytes=256 << 20,
    max_grid=65535,
    max_workgroup_bytes=16384,
    max_invocations=256,
)


@dataclass(slots=True, eq=False)
class ExportBuffer:
    size_bytes: int
    label: str
    index: int


class ExportDevice:
    """A `Device` for an adapter that is not here: `info` says what it grants."""

    def __init__(self, info: DeviceInfo, path: Path) -> None:
        self.info = info
        self.held_bytes = 0
        self._path = path
        self._bytes = open(path.with_suffix(".bin"), "wb")  # noqa: SIM115 - closed by `close`
        self._shaders: dict[str, int] = {}
        self._kernels: dict[Kernel, int] = {}
        self._buffers: list[int] = []
        self._programs: list[dict[str, Any]] = []
        self._setup: list[list[str | int]] = []

    def buffer(self, size_bytes: int, label: str, /) -> ExportBuffer:
        assert size_bytes > 0 and size_bytes % 4 == 0, (label, size_bytes)
        if size_bytes > self.info.max_buffer_bytes:
            raise BackendError(f"{label}: {size_bytes} bytes exceed a buffer of {self.info.name}")
        self._buffers.append(size_bytes)
        self.held_bytes += size_bytes
        return ExportBuffer(size_bytes, label, len(self._buffers) - 1)

    def write(self, buffer: Buffer, offset_bytes: int, data: memoryview, /) -> None:
        at = self._bytes.tell()
        self._bytes.write(data)
        self._setup.append(["write", _index(buffer), offset_bytes, at, data.nbytes])

    def copy(self, copies: Sequence[tuple[Buffer, int, Buffer, int, int]], /) -> None:
        for source, at, target, to, size in copies:
            self._setup.append(["copy", _index(source), at, _index(target), to, size])

    def read(self, buffer: Buffer, offset_bytes: int, size_bytes: int, /) -> bytes:
        raise BackendError("an exported device computes nothing, so nothing can be read")

    def fetch(self, ranges: Sequence[tuple[Buffer, int, int]], /) -> Awaitable[list[bytes]]:
        raise BackendError("an exported device computes nothing, so nothing can be read")

    def program(
        self,
        dispatches: Sequence[Dispatch],
        /,
        *,
        step: Buffer | None = None,
        result: Buffer | None = None,
        result_bytes: int = 0,
    ) -> ExportProgram:
        for dispatch in dispatches:
            check_dispatch(dispatch, self.info)
        calls = [
            [self._kernel(d.kernel), [_index(buffer) for buffer in d.buffers], list(d.grid)]
            for d in dispatches
        ]
        self._programs.append(
            {
                "dispatches": calls,
                "step": None if step is None else _index(step),
                "result": None if result is None else _index(result),
                "resultBytes": result_bytes,
            }
        )
        return ExportProgram(self, len(self._programs) - 1)

    def destroy(self, buffer: Buffer, /) -> None:
        self.held_bytes -= buffer.size_bytes
        self._setup.append(["destroy", _index(buffer)])

    def close(self) -> None:
        self._bytes.close()

    def run_once(self, program: int) -> None:
        self._setup.append(["run", program])

    def save(self, plans: Mapping[str, WebGpuPlan]) -> None:
        """Write the JSON beside the bytes, with `plans` by name."""
        self._bytes.flush()
        document = {
            "version": 1,
            "features": sorted(self.info.features),
            "maxBindingBytes": self.info.max_binding_bytes,
            "maxBufferBytes": self.info.max_buffer_bytes,
            "shaders": list(self._shaders),
            "kernels": [self._described(kernel) for kernel in self._kernels],
            "buffers": self._buffers,
            "programs": self._programs,
            "setup": self._setup,
            "plans": {name: _described_plan(plan) for name, plan in plans.items()},
        }
        self._path.with_suffix(".json").write_text(json.dumps(document))

    def _kernel(self, kernel: Kernel) -> int:
        self._shaders.setdefault(kernel.wgsl, len(self._shaders))
        return self._kernels.setdefault(kernel, len(self._kernels))

    def _described(self, kernel: Kernel) -> dict[str, Any]:
        return {
            "name": kernel.name,
            "shader": self._shaders[kernel.wgsl],
            "entry": kernel.entry,
            "access": list(kernel.access),
            "constants": dict(kernel.constants),
        }


@dataclass(frozen=True, slots=True)
class ExportProgram:
    device: ExportDevice
    index: int

    def submit(self, step: memoryview, /) -> Awaitable[memoryview]:
        """Written down as part of the set-up; only programs without step words can be."""
        if step.nbytes:
            raise BackendError("an exported plan runs in the page, not here")
        self.device.run_once(self.index)
        return _Nothing()


class _Nothing(Awaitable[memoryview]):
    def __await__(self) -> Generator[Any, None, memoryview]:
        return memoryview(b"")
        yield  # a generator that never yields


def _index(buffer: Buffer) -> int:
    assert isinstance(buffer, ExportBuffer)
    return buffer.index


def _described_plan(plan: WebGpuPlan) -> dict[str, Any]:
    assert isinstance(plan.program, ExportProgram)
    return {
        "program": plan.program.index,
        "key": asdict(plan.key),
        "words": plan.layout.words,
        "offset": plan.layout.offset,
        "tableEntries": plan.layout.table_entries,
        "recordWords": RecordLayout(plan.key.top_logprobs).words,
    }
