"""WebGPU natively: the driver over wgpu-py. The only module that imports wgpu."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from typing import Any

from zllm.backend.webgpu.device import (
    Buffer,
    DeviceInfo,
    Dispatch,
    Kernel,
    check_dispatch,
    check_kernel,
)
from zllm.backend.webgpu.wgpu_program import Call, Ring, WgpuBuffer, WgpuProgram
from zllm.errors import BackendError, DeviceLost

# Mesa's device-select layer asks a display server that a server does not have, and complains on
# stderr. The adapter is chosen here, so the layer has nothing to do.
os.environ.setdefault("NODEVICE_SELECT", "1")
try:
    import wgpu
    from wgpu.backends.wgpu_native import extras

    from zllm.backend.webgpu.wgpu_module import create_module
except (ImportError, RuntimeError) as error:
    raise BackendError(
        f"the webgpu backend needs wgpu-py ({error}): "
        "pip install 'zllm[webgpu]', or take the oracle"
    ) from error

ADAPTER_VARIABLE = "ZLLM_WGPU_ADAPTER"
KINDS = ("DiscreteGPU", "IntegratedGPU", "Unknown", "CPU")  # in order of preference
CFFI_VERSION = "0.32.0"  # the release whose private handles were checked by a test
STAGED_BYTES = 64 << 20  # wgpu keeps a copy of every write until a submit is done

# What a browser grants without being asked [WebGPU §3.6.2], so that CI refuses what a page would.
DEFAULT_LIMITS = {
    "max-bind-groups": 4,
    "max-bindings-per-bind-group": 1000,
    "max-buffer-size": 256 << 20,
    "max-compute-invocations-per-workgroup": 256,
    "max-compute-workgroup-size-x": 256,
    "max-compute-workgroup-size-y": 256,
    "max-compute-workgroup-size-z": 64,
    "max-compute-workgroup-storage-size": 16384,
    "max-compute-workgroups-per-dimension": 65535,
    "max-storage-buffer-binding-size": 128 << 20,
    "max-storage-buffers-per-shader-stage": 8,
    "max-uniform-buffer-binding-size": 64 << 10,
    "max-uniform-buffers-per-shader-stage": 12,
}
RAISED_LIMITS = ("max-buffer-size", "max-storage-buffer-binding-size")
FEATURES = {"f16": "shader-f16", "subgroups": "subgroup"}  # naga's spelling of the second

SUBGROUP_PROBE = Kernel(
    "subgroup_size",
    "@group(0) @binding(0) var<storage, read_write> size: array<u32>;\n"
    "@compute @workgroup_size(64) fn main(@builtin(subgroup_size) n: u32) { size[0] = n; }\n",
    ("write",),
)


LOST = re.compile(r"device (is |was )?lost", re.IGNORECASE)  # wgpu's words, in any later call
OUT_OF_MEMORY = (
    "the device is out of memory; lower --context, run fewer sequences at once, "
    "or take a smaller model or the oracle"
)

# wgpu-py logs a loss with a banner; the error that it causes tells it in one line.
logging.getLogger("wgpu").addFilter(lambda record: "lost" not in record.getMessage().lower())


@contextmanager
def reported(what: str) -> Iterator[None]:
    """Turn the device's complaint into one BackendError that says what was being done."""
    try:
        yield
    except wgpu.GPUOutOfMemoryError as error:
        raise BackendError(f"{what}: {OUT_OF_MEMORY}") from error
    except (wgpu.GPUError, RuntimeError, AttributeError) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        text = " / ".join(lines)
        if LOST.search(text):
            raise DeviceLost(f"{what}: the WebGPU device is lost") from error
        if "not enough memory" in text.lower() or "out of memory" in text.lower():
            raise BackendError(f"{what}: {OUT_OF_MEMORY}") from error
        raise BackendError(f"{what}: {text[:600]}") from error


def _adapters() -> list[Any]:
    """Usable adapters, best first. Only the native APIs: OpenGL lacks what WebGPU promises."""
    with suppress(RuntimeError):  # somebody made the process's instance before
        extras.set_instance_extras(backends=["Vulkan", "Metal", "DX12"])
    found = [a for a in wgpu.gpu.enumerate_adapters_sync() if a.info["backend_type"] != "OpenGL"]
    return sorted(found, key=lambda adapter: KINDS.index(_kind(adapter)))


def _kind(adapter: Any) -> str:
    kind = adapter.info["adapter_type"]
    return kind if kind in KINDS else "Unknown"


def list_adapters() -> list[dict[str, Any]]:
    """Name, kind, API, driver, features and sizes in bytes of each adapter, the preferred first."""
    return [
        {
            "name": adapter.info["device"],
            "kind": _kind(adapter),
            "api": adapter.info["backend_type"],
            "driver": adapter.info["description"],
            "features": sorted(f for f, name in FEATURES.items() if name in adapter.features),
            "max_binding_bytes": adapter.limits["max-storage-buffer-binding-size"],
            "max_buffer_bytes": adapter.limits["max-buffer-size"],
        }
        for adapter in _adapters()
    ]


def open_device(adapter_name: str | None = None, *, use_cffi: bool = True) -> WgpuDevice:
    """On the adapter of `choose_adapter`.

    use_cffi: record passes through wgpu-py's own library handle, which takes a third of the time.
    """
    return WgpuDevice(choose_adapter(adapter_name), use_cffi=use_cffi)


def choose_adapter(adapter_name: str | None = None) -> Any:
    """The best adapter, or the first that `adapter_name` or $ZLLM_WGPU_ADAPTER is a part of.

    BackendError without a usable adapter.
    """
    adapters = _adapters()
    if not adapters:
        raise BackendError(
            "no WebGPU adapter: install a Vulkan driver (without a GPU: mesa-vulkan-drivers), "
            "or take the oracle"
        )
    wanted = adapter_name or os.environ.get(ADAPTER_VARIABLE, "")
    names = [f"{a.info['device']} ({a.info['backend_type']})" for a in adapters]
    for adapter, name in zip(adapters, names, strict=True):
        if wanted.lower() in name.lower():
            return adapter
    raise BackendError(f"no WebGPU adapter is named {wanted!r}; there are: {', '.join(names)}")


class WgpuDevice:
    """A device with a browser's limits, but buffers and bindings as large as the adapter has."""

    more_features: tuple[str, ...] = ()  # in WebGPU's spelling

    def __init__(self, adapter: Any, /, *, use_cffi: bool = True) -> None:
        limits = dict(DEFAULT_LIMITS)
        for name in RAISED_LIMITS:
            limits[name] = max(limits[name], adapter.limits[name] // 4 * 4)
        features = frozenset(f for f, name in FEATURES.items() if name in adapter.features)
        name = adapter.info["device"]
        with reported(f"WebGPU adapter {name}"):
            self.handle = adapter.request_device_sync(
                required_features=[*self.more_features, *(FEATURES[f] for f in sorted(features))],
                required_limits=limits,
            )
        self.held_bytes = 0
        self._preamble = "enable f16;\n" if "f16" in features else ""
        self.calls = cffi_calls() if use_cffi else None
        self._modules: dict[str, Any] = {}
        self._layouts: dict[tuple[str, ...], tuple[Any, Any]] = {}
        self._pipelines: dict[Kernel, Any] = {}
        self.staged_bytes = 0
        self._closed = False
        self.ring = Ring(self)
        self.info = DeviceInfo(
            name=name,
            software=_kind(adapter) == "CPU",
            features=features,
            subgroup_size=0,
            max_binding_bytes=limits["max-storage-buffer-binding-size"],
            max_buffer_bytes=limits["max-buffer-size"],
            max_grid=limits["max-compute-workgroups-per-dimension"],
            max_workgroup_bytes=limits["max-compute-workgroup-storage-size"],
            max_invocations=limits["max-compute-invocations-per-workgroup"],
            driver=f"{adapter.info['backend_type']} {adapter.info['description']}",
        )
        if "subgroups" in features:
            self.info = replace(self.info, subgroup_size=self._subgroup_size())

    def _subgroup_size(self) -> int:
        """What a shader really gets: the adapter only tells a range."""
        size = self.buffer(4, "subgroup size")
        self.program([Dispatch(SUBGROUP_PROBE, (size,), (1, 1, 1))]).submit(memoryview(b""))
        answer = int.from_bytes(self.read(size, 0, 4), "little")
        self.destroy(size)
        return answer

    def reported(self, what: str) -> AbstractContextManager[None]:
        """Errors of the device inside the block become a BackendError about `what`."""
        return reported(what)

    def buffer(self, size_bytes: int, label: str, /) -> WgpuBuffer:
        usage = wgpu.BufferUsage
        return self._allocate(size_bytes, label, usage.STORAGE | usage.COPY_SRC | usage.COPY_DST)

    def readback(self, size_bytes: int) -> WgpuBuffer:
        usage = wgpu.BufferUsage
        return self._allocate(size_bytes, "readback", usage.MAP_READ | usage.COPY_DST)

    def _allocate(self, size_bytes: int, label: str, usage: int) -> WgpuBuffer:
        assert size_bytes > 0 and size_bytes % 4 == 0, (label, size_bytes)
        self.check_open()
        with reported(f"{label}: {size_bytes / 2**20:.1f} MiB of device memory"):
            handle = self.handle.create_buffer(size=size_bytes, usage=usage, label=label)
        self.held_bytes += size_bytes
        return WgpuBuffer(size_bytes, label, handle)

    def write(self, buffer: Buffer, offset_bytes: int, data: memoryview, /) -> None:
        assert isinstance(buffer, WgpuBuffer)
        self.check_open()
        with reported(f"writing {buffer.label}"):
            self.handle.queue.write_buffer(buffer.handle, offset_bytes, data)
        self.staged_bytes += data.nbytes
        if self.staged_bytes > STAGED_BYTES:
            self.read(buffer, 0, 4)

    def copy(self, copies: Sequence[tuple[Buffer, int, Buffer, int, int]], /) -> None:
        self.check_open()
        with reported("copying buffers"):
            encoder = self.handle.create_command_encoder()
            for source, at, target, to, size in copies:
                assert isinstance(source, WgpuBuffer) and isinstance(target, WgpuBuffer)
                encoder.copy_buffer_to_buffer(source.handle, at, target.handle, to, size)
            self.handle.queue.submit([encoder.finish()])

    def read(self, buffer: Buffer, offset_bytes: int, size_bytes: int, /) -> bytes:
        assert isinstance(buffer, WgpuBuffer)
        self.check_open()
        self.staged_bytes = 0
        with reported(f"reading {buffer.label}"):
            return bytes(self.handle.queue.read_buffer(buffer.handle, offset_bytes, size_bytes))

    async def fetch(self, ranges: Sequence[tuple[Buffer, int, int]], /) -> list[bytes]:
        return [self.read(*where) for where in ranges]

    def program(
        self,
        dispatches: Sequence[Dispatch],
        /,
        *,
        step: Buffer | None = None,
        result: Buffer | None = None,
        result_bytes: int = 0,
    ) -> WgpuProgram:
        self.check_open()
        assert step is None or isinstance(step, WgpuBuffer)
        assert result is None or isinstance(result, WgpuBuffer)
        return WgpuProgram(self, [self._bind(d) for d in dispatches], step, result, result_bytes)

    def destroy(self, buffer: Buffer, /) -> None:
        assert isinstance(buffer, WgpuBuffer)
        self.held_bytes -= buffer.size_bytes
        buffer.handle.destroy()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self.handle.destroy()

    def check_alive(self) -> None:
        """DeviceLost if it is: any call tells, waiting does not."""
        with reported("waiting for a round"):
            self.handle.create_buffer(size=4, usage=wgpu.BufferUsage.COPY_DST).destroy()

    def check_open(self) -> None:
        if self._closed:
            raise BackendError("the WebGPU device was closed")

    def _bind(self, dispatch: Dispatch) -> Call:
        kernel = dispatch.kernel
        check_dispatch(dispatch, self.info)
        with reported(f"kernel {kernel.name}"):
            layout, _ = self._layout(kernel.access)
            entries = [
                {"binding": i, "resource": {"buffer": buffer.handle}}
                for i, buffer in enumerate(dispatch.buffers)
                if isinstance(buffer, WgpuBuffer)
            ]
            group = self.handle.create_bind_group(layout=layout, entries=entries)
            return Call(self._pipeline(kernel), group, dispatch.grid)

    def _layout(self, access: tuple[str, ...]) -> tuple[Any, Any]:
        if access not in self._layouts:
            kinds = {"read": "read-only-storage", "write": "storage"}
            group = self.handle.create_bind_group_layout(
                entries=[
                    {
                        "binding": i,
                        "visibility": wgpu.ShaderStage.COMPUTE,
                        "buffer": {"type": kinds[how]},
                    }
                    for i, how in enumerate(access)
                ]
            )
            pipeline = self.handle.create_pipeline_layout(bind_group_layouts=[group])
            self._layouts[access] = group, pipeline
        return self._layouts[access]

    def _pipeline(self, kernel: Kernel) -> Any:
        if kernel not in self._pipelines:
            check_kernel(kernel, self.info)
            if kernel.wgsl not in self._modules:
                self._modules[kernel.wgsl] = create_module(
                    self.handle, self._preamble + kernel.wgsl, kernel.name
                )
            self._pipelines[kernel] = self.handle.create_compute_pipeline(
                layout=self._layout(kernel.access)[1],
                compute={
                    "module": self._modules[kernel.wgsl],
                    "entry_point": kernel.entry,
                    "constants": dict(kernel.constants),
                },
            )
        return self._pipelines[kernel]


def cffi_calls() -> tuple[Any, ...] | None:
    """set_pipeline, set_bind_group, dispatch and NULL of wgpu-py's own library; None if untried."""
    if wgpu.__version__ != CFFI_VERSION:
        return None
    from wgpu.backends.wgpu_native._ffi import ffi, lib

    return (
        lib.wgpuComputePassEncoderSetPipeline,
        lib.wgpuComputePassEncoderSetBindGroup,
        lib.wgpuComputePassEncoderDispatchWorkgroups,
        ffi.NULL,
    )


def timestamp_period_ns(device: Any) -> float:
    """Of one tick of a device's timestamps: wgpu gives them as the hardware counts."""
    from wgpu.backends.wgpu_native._ffi import lib

    return float(lib.wgpuQueueGetTimestampPeriod(device.queue._internal))
