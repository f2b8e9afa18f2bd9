"""What can go wrong with a device: one line that says what to do; `auto` moves on, saying so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from zllm.backend.webgpu import launch
from zllm.backend.webgpu.device import Dispatch, Kernel
from zllm.bin.main import main
from zllm.embedded import Engine
from zllm.errors import BackendError, Notice
from zllm.runtime import compose

pytestmark = pytest.mark.vulkan

LLAMA = Path(__file__).parents[1] / "data" / "golden" / "llama"
REQUEST = {"tokens": [3, 1, 4], "max_tokens": 6, "temperature": 0, "return_token_ids": True}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZLLM_CACHE", str(tmp_path))
    real = compose._open_webgpu  # `auto` takes a software adapter too, so that it can fail
    monkeypatch.setattr(compose, "_open_webgpu", lambda *args, software: real(*args, software=True))


def no_adapter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zllm.backend.webgpu.wgpu_device._adapters", list)


def small_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The table of angles does not fit a binding."""
    _change_device(monkeypatch, lambda info: replace(info, max_binding_bytes=2 << 10))


def _change_device(monkeypatch: pytest.MonkeyPatch, change: Callable[[Any], Any]) -> None:
    from zllm.backend.webgpu.wgpu_device import WgpuDevice

    real = WgpuDevice.__init__

    def init(self: Any, *args: Any, **options: Any) -> None:
        real(self, *args, **options)
        self.info = change(self.info)

    monkeypatch.setattr(WgpuDevice, "__init__", init)


def out_of_memory(monkeypatch: pytest.MonkeyPatch, left: int = 40) -> None:
    """The device gives so many buffers more and no other."""
    import wgpu

    from zllm.backend.webgpu.wgpu_device import WgpuDevice

    real = WgpuDevice._allocate

    def allocate(self: Any, size_bytes: int, label: str, usage: int) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            monkeypatch.setattr(type(self.handle), "create_buffer", refuse)
        return real(self, size_bytes, label, usage)

    def refuse(*args: Any, **options: Any) -> Any:
        raise wgpu.GPUOutOfMemoryError("Out of Memory\n  a second line")

    monkeypatch.setattr(WgpuDevice, "_allocate", allocate)


def refused_shader(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a check before, or a device whose driver refuses only the real size."""
    from zllm.backend.webgpu import backend

    def lower(op: Any, context: Any) -> list[Dispatch]:
        dispatches = launch.lower(op, context)
        if op.name == "attend":
            kernel = replace(dispatches[0].kernel, wgsl="fn main( {")
            dispatches[0] = replace(dispatches[0], kernel=kernel)
        return dispatches

    monkeypatch.setattr(
        backend.WebGpuBackend,
        "check_kernels",
        lambda self, *args, **more: setattr(self, "_lowering", lower),
    )


FAULTS = {
    "no adapter": (no_adapter, "no WebGPU adapter: install a Vulkan driver"),
    "a small limit": (small_limit, "; lower --context"),
    "out of memory": (out_of_memory, "MiB of device memory: the device is out of memory; lower"),
    "a refused shader": (refused_shader, "kernel attend"),
}


@pytest.mark.parametrize(("fault", "said"), FAULTS.values(), ids=FAULTS)
def test_webgpu_says_it_in_one_line(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    fault: Callable[[pytest.MonkeyPatch], None],
    said: str,
) -> None:
    fault(monkeypatch)
    assert main(["chat", "hi", "--model", str(LLAMA), "--backend", "webgpu"]) == 1
    out, err = capsys.readouterr()
    assert not out
    assert err.startswith("zllm: error: ") and err.count("\n") == 1
    assert said in err and "Traceback" not in err


@pytest.mark.parametrize(("fault", "said"), FAULTS.values(), ids=FAULTS)
def test_auto_moves_on_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    fault: Callable[[pytest.MonkeyPatch], None],
    said: str,
) -> None:
    fault(monkeypatch)
    out = str(tmp_path / "l.npy")
    command = ["logits", "--tokens", "1,2", "--out", out, "--context", "512"]
    assert main([*command, "--model", str(LLAMA)]) == 0
    err = capsys.readouterr().err
    assert err.startswith("zllm: --backend auto runs on the oracle: ") and err.count("\n") == 1
    assert said in err
    assert Path(out).exists()


def test_memory_that_runs_out_in_a_round_fails_that_request_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Engine(model=LLAMA, backend="webgpu", context=128, lanes=2) as engine:
        before = engine.generate(REQUEST)["choices"][0]["token_ids"]
        with monkeypatch.context() as patch:
            out_of_memory(patch, left=0)
            with pytest.raises(BackendError, match="out of memory; lower --context") as caught:
                engine.generate(REQUEST | {"tokens": [1] * 60})
        assert "\n" not in str(caught.value)
        assert engine.generate(REQUEST)["choices"][0]["token_ids"] == before


INVALID = {
    "an unknown override": Kernel(
        "odd",
        "@group(0) @binding(0) var<storage, read_write> x: array<u32>;\n"
        "@compute @workgroup_size(1) fn main() { x[0] = 1u; }",
        ("write",),
        (("MISSING", 1.0),),
    ),
    "too many threads": Kernel(
        "odd",
        "override T: u32;\n@group(0) @binding(0) var<storage, read_write> x: array<u32>;\n"
        "@compute @workgroup_size(T, 2) fn main() { x[0] = 1u; }",
        ("write",),
        (("T", 129.0),),
    ),
    "another entry": Kernel(
        "odd",
        "@group(0) @binding(0) var<storage, read_write> x: array<u32>;\n"
        "@compute @workgroup_size(1) fn other() { x[0] = 1u; }",
        ("write",),
    ),
}


@pytest.mark.parametrize("kernel", INVALID.values(), ids=INVALID)
def test_an_invalid_pipeline_names_its_kernel(device: Any, kernel: Kernel) -> None:
    buffer = device.buffer(4, "x")
    with pytest.raises(BackendError, match="kernel odd: ") as caught:
        device.program([Dispatch(kernel, (buffer,), (1, 1, 1))])
    assert "\n" not in str(caught.value)


def test_a_notice_is_for_each_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    no_adapter(monkeypatch)
    with pytest.warns(Notice, match="auto runs on the oracle: no WebGPU adapter") as told:
        Engine(model=LLAMA, context=64).close()
    assert len(told) == 1
