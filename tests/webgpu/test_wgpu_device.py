"""The wgpu-py driver: bytes, programs, both ways to encode, limits and errors."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numpy.typing import NDArray

from zllm.backend.webgpu.device import Dispatch, Kernel
from zllm.errors import BackendError

if TYPE_CHECKING:
    from zllm.backend.webgpu.wgpu_device import WgpuBuffer, WgpuDevice

pytestmark = pytest.mark.vulkan

ADD = Kernel(
    "add_step",
    """
override scale: i32 = 1;
@group(0) @binding(0) var<storage, read> x: array<i32>;
@group(0) @binding(1) var<storage, read_write> y: array<i32>;
@compute @workgroup_size(8) fn main(@builtin(global_invocation_id) id: vec3u) {
  if (id.x < arrayLength(&y)) { y[id.x] = x[id.x % arrayLength(&x)] * scale + y[id.x]; }
}
""",
    ("read", "write"),
    (("scale", 3.0),),
)


def words(*values: int) -> memoryview:
    return np.array(values, np.int32).data.cast("B")


def ints(data: memoryview | bytes) -> list[int]:
    return np.frombuffer(data, np.int32).tolist()


@pytest.fixture
def buffers(device: WgpuDevice) -> tuple[WgpuBuffer, WgpuBuffer]:
    return device.buffer(8, "x"), device.buffer(12, "y")


@pytest.mark.parametrize("size_bytes", [4, 20, 4096, 3 << 20])
def test_bytes_round_trip(device: WgpuDevice, size_bytes: int) -> None:
    data = np.random.default_rng(size_bytes).integers(0, 256, size_bytes, np.uint8)
    buffer = device.buffer(size_bytes, "bytes")
    device.write(buffer, 0, data.data)
    assert device.read(buffer, 0, size_bytes) == data.tobytes()
    device.destroy(buffer)


def test_a_new_buffer_is_zero_and_a_write_touches_its_range(device: WgpuDevice) -> None:
    buffer = device.buffer(20, "zero")
    device.write(buffer, 8, words(7))
    assert ints(device.read(buffer, 0, 20)) == [0, 0, 7, 0, 0]
    assert ints(device.read(buffer, 8, 4)) == [7]


def test_writes_beyond_the_staging_limit_arrive(device: WgpuDevice) -> None:
    buffer = device.buffer(48 << 20, "large")
    chunk: NDArray[np.int32] = np.arange(4 << 20, dtype=np.int32)  # 16 MiB
    for part in range(6):
        device.write(buffer, (part % 3) * chunk.nbytes, (chunk + part).data.cast("B"))
    assert ints(device.read(buffer, 2 * chunk.nbytes + 400, 8)) == [105, 106]
    device.destroy(buffer)


def test_copies_run_in_order(device: WgpuDevice) -> None:
    source, target = device.buffer(16, "source"), device.buffer(16, "target")
    device.write(source, 0, words(1, 2, 3, 4))
    device.copy([(source, 4, target, 0, 8), (target, 0, source, 0, 4)])
    assert ints(device.read(target, 0, 16)) == [2, 3, 0, 0]
    assert ints(device.read(source, 0, 16)) == [2, 2, 3, 4]


@pytest.mark.parametrize("use_cffi", [False, True], ids=["public", "cffi"])
def test_a_program_replays_with_new_step_words(device: WgpuDevice, use_cffi: bool) -> None:
    from zllm.backend.webgpu.wgpu_device import cffi_calls

    calls = cffi_calls()
    assert calls is not None, "the installed wgpu-py is not the one whose handles were checked"
    step, total = device.buffer(8, "step"), device.buffer(12, "total")
    kept, device.calls = device.calls, calls if use_cffi else None
    try:
        dispatches = [Dispatch(ADD, (step, total), (1, 1, 1))] * 2
        program = device.program(dispatches, step=step, result=total, result_bytes=12)
    finally:
        device.calls = kept
    first = program.submit(words(1, 2))
    second = program.submit(words(10, 20))
    assert ints(second.wait()) == [66, 132, 66]
    assert ints(first.wait()) == [6, 12, 6]
    assert ints(first.wait()) == [6, 12, 6]


def test_answers_nobody_fetches_do_not_pile_up(
    device: WgpuDevice, buffers: tuple[WgpuBuffer, WgpuBuffer]
) -> None:
    step, total = buffers
    program = device.program(
        [Dispatch(ADD, (step, total), (1, 1, 1))], step=step, result=total, result_bytes=12
    )
    for _ in range(5):
        program.submit(words(1, 1))
    held = device.held_bytes
    answers = [program.submit(words(1, 1)) for _ in range(20)]
    assert device.held_bytes == held
    assert [ints(answer.wait())[0] for answer in answers] == [3 * n for n in range(6, 26)]


def test_a_program_without_result_answers_when_done(
    device: WgpuDevice, buffers: tuple[WgpuBuffer, WgpuBuffer]
) -> None:
    step, total = buffers
    program = device.program([Dispatch(ADD, (step, total), (1, 1, 1))], step=step)
    assert program.submit(words(1, 1)).wait().nbytes == 0
    assert ints(device.read(total, 0, 12)) == [3, 3, 3]


def test_await_never_yields_even_in_a_running_loop(
    device: WgpuDevice, buffers: tuple[WgpuBuffer, WgpuBuffer]
) -> None:
    step, total = buffers
    program = device.program(
        [Dispatch(ADD, (step, total), (1, 1, 1))], step=step, result=total, result_bytes=4
    )

    async def one() -> list[int]:
        return ints(await program.submit(words(5, 0)))

    with pytest.raises(StopIteration) as stopped:
        one().send(None)
    assert stopped.value.value == [15]
    assert asyncio.run(one()) == [30]


def test_limits_are_a_browsers(device: WgpuDevice) -> None:
    limits = device.handle.limits
    assert limits["max-storage-buffers-per-shader-stage"] == 8
    assert device.info.max_workgroup_bytes == limits["max-compute-workgroup-storage-size"] == 16384
    assert device.info.max_invocations == limits["max-compute-invocations-per-workgroup"] == 256
    assert device.info.max_binding_bytes >= 128 << 20
    assert device.info.max_binding_bytes % 4 == device.info.max_buffer_bytes % 4 == 0


def test_what_a_browser_refuses_is_refused(device: WgpuDevice) -> None:
    names = [f"b{i}" for i in range(9)]
    declared = "".join(
        f"@group(0) @binding({i}) var<storage, read_write> {name}: array<u32>;\n"
        for i, name in enumerate(names)
    )
    body = "".join(f"{name}[0] = 1u;" for name in names)
    wgsl = f"{declared}@compute @workgroup_size(1) fn main() {{ {body} }}"
    kernel = Kernel("nine_buffers", wgsl, ("write",) * 9)
    bound = tuple(device.buffer(4, name) for name in names)
    with pytest.raises(BackendError, match="nine_buffers"):
        device.program([Dispatch(kernel, bound, (1, 1, 1))])


def test_subgroup_size_is_what_shaders_get(device: WgpuDevice) -> None:
    if "subgroups" not in device.info.features:
        assert device.info.subgroup_size == 0
        return
    assert device.info.subgroup_size in (4, 8, 16, 32, 64, 128)


def test_f16_kernels_need_no_directive(device: WgpuDevice) -> None:
    if "f16" not in device.info.features:
        pytest.skip("the adapter has no f16")
    kernel = Kernel(
        "half",
        "@group(0) @binding(0) var<storage, read_write> y: array<f32>;\n"
        "@compute @workgroup_size(1) fn main() { y[0] = f32(f16(1.0 + y[0]) / f16(3.0)); }",
        ("write",),
    )
    out = device.buffer(4, "out")
    device.program([Dispatch(kernel, (out,), (1, 1, 1))]).submit(words())
    (value,) = np.frombuffer(device.read(out, 0, 4), np.float32)
    assert value == np.float32(np.float16(1) / np.float16(3))


def bad_wgsl(device: WgpuDevice) -> None:
    kernel = Kernel("unparsable", "fn main( {", ("write",))
    device.program([Dispatch(kernel, (device.buffer(4, "b"),), (1, 1, 1))])


def bad_access(device: WgpuDevice) -> None:
    wrong = Kernel("written_as_read", ADD.wgsl, ("read", "read"), ADD.constants)
    bound = (device.buffer(4, "a"), device.buffer(4, "b"))
    device.program([Dispatch(wrong, bound, (1, 1, 1))])


def aliased(device: WgpuDevice) -> None:
    buffer = device.buffer(4, "both_ways")
    device.program([Dispatch(ADD, (buffer, buffer), (1, 1, 1))])


def endless_grid(device: WgpuDevice) -> None:
    bound = (device.buffer(4, "a"), device.buffer(4, "b"))
    device.program([Dispatch(ADD, bound, (1, device.info.max_grid + 1, 1))])


def too_large(device: WgpuDevice) -> None:
    device.buffer(1 << 50, "endless")


@pytest.mark.parametrize(
    ("act", "named"),
    [
        (bad_wgsl, "unparsable"),
        (bad_access, "written_as_read"),
        (aliased, "add_step: both_ways is written and bound twice"),
        (endless_grid, r"add_step: a grid of \(1, 65536, 1\)"),
        (too_large, "endless"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_errors_name_their_cause_on_one_line(device: WgpuDevice, act: Any, named: str) -> None:
    with pytest.raises(BackendError, match=named) as caught:
        act(device)
    assert "\n" not in str(caught.value)


def test_out_of_memory_says_so(device: WgpuDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    import wgpu

    def refuse(**_: Any) -> None:
        raise wgpu.GPUOutOfMemoryError("Not enough memory left")

    monkeypatch.setattr(device.handle, "create_buffer", refuse)
    with pytest.raises(BackendError, match=r"cache keys: 2\.0 MiB .*out of memory"):
        device.buffer(2 << 20, "cache keys")


def test_a_lost_device_is_one_backend_error() -> None:
    from zllm.backend.webgpu.wgpu_device import open_device

    device = open_device()
    step, total = device.buffer(8, "step"), device.buffer(12, "total")
    program = device.program(
        [Dispatch(ADD, (step, total), (1, 1, 1))], step=step, result=total, result_bytes=12
    )
    assert ints(program.submit(words(1, 1)).wait()) == [3, 3, 3]
    device.handle.destroy()  # what a driver reset does to the device
    with pytest.raises(BackendError):
        program.submit(words(1, 1)).wait()
    device.close()
    device.close()
    with pytest.raises(BackendError, match="closed"):
        program.submit(words(1, 1))


def test_an_adapter_is_chosen_by_a_part_of_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    from zllm.backend.webgpu import wgpu_device

    listed = wgpu_device.list_adapters()
    monkeypatch.setenv("ZLLM_WGPU_ADAPTER", listed[0]["name"][2:8].upper())
    device = wgpu_device.open_device()
    assert device.info.name == listed[0]["name"]
    device.close()
    with pytest.raises(BackendError, match=r"no-such-card.*there are: .*" + listed[0]["name"][:8]):
        wgpu_device.open_device("no-such-card")


def test_hardware_comes_before_software() -> None:
    from zllm.backend.webgpu.wgpu_device import list_adapters

    order = ["DiscreteGPU", "IntegratedGPU", "Unknown", "CPU"]
    kinds = [order.index(adapter["kind"]) for adapter in list_adapters()]
    assert kinds == sorted(kinds)


@pytest.mark.parametrize(
    ("setup", "message"),
    [
        ("sys.modules['wgpu'] = None", "pip install"),
        (
            "import wgpu; type(wgpu.gpu).enumerate_adapters_sync = lambda self: []",
            "no WebGPU adapter: install a Vulkan driver",
        ),
    ],
    ids=["no wgpu", "no adapter"],
)
def test_what_is_missing_is_said(setup: str, message: str) -> None:
    code = (
        f"import sys\n{setup}\n"
        "from zllm.errors import BackendError\n"
        "try:\n"
        "    from zllm.backend.webgpu.wgpu_device import open_device\n"
        "    open_device()\n"
        "except BackendError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert message in done.stdout
    assert "oracle" in done.stdout
