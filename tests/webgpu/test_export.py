"""What the exporting device writes down computes, replayed elsewhere, what the backend computes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numpy.typing import NDArray

from zllm.backend.contract import Group, PlanKey
from zllm.backend.webgpu.backend import WebGpuBackend
from zllm.backend.webgpu.device import Device, Dispatch, Kernel
from zllm.backend.webgpu.export import SWIFTSHADER, ExportDevice
from zllm.backend.webgpu.plan import WebGpuPlan
from zllm.errors import BackendError
from zllm.runtime.compose import Groups, ModelResources
from zllm.runtime.llama.decoder import Decoder
from zllm.runtime.recorder import Recorder
from zllm.weight.checkpoint import open_checkpoint
from zllm.weight.linear_weight import F32

if TYPE_CHECKING:
    from zllm.backend.webgpu.wgpu_device import WgpuDevice

COPY = Kernel(
    "copy",
    "override add: i32;\n"
    "@group(0) @binding(0) var<storage, read> x: array<i32>;\n"
    "@group(0) @binding(1) var<storage, read_write> y: array<i32>;\n"
    "@compute @workgroup_size(1) fn main(@builtin(workgroup_id) id: vec3u) {"
    " y[id.x] = x[id.x] + add; }",
    ("read", "write"),
    (("add", 5.0),),
)


@pytest.fixture
def exporter(tmp_path: Path) -> Iterator[ExportDevice]:
    device = ExportDevice(SWIFTSHADER, tmp_path / "model")
    yield device
    device.close()


def test_everything_is_written_down(exporter: ExportDevice, tmp_path: Path) -> None:
    x, y = exporter.buffer(8, "x"), exporter.buffer(12, "y")
    exporter.write(x, 4, np.array([7], np.int32).data.cast("B"))
    exporter.write(y, 0, np.array([8, 9], np.int32).data.cast("B"))
    exporter.copy([(x, 0, y, 4, 4)])
    exporter.program([Dispatch(COPY, (x, y), (2, 1, 1))]).submit(memoryview(b""))
    exporter.program([Dispatch(COPY, (x, y), (1, 1, 1))] * 2, step=x, result=y, result_bytes=8)
    exporter.destroy(x)
    exporter.save({})

    assert np.fromfile(tmp_path / "model.bin", np.int32).tolist() == [7, 8, 9]
    document = json.loads((tmp_path / "model.json").read_text())
    assert document["version"] == 1
    assert document["features"] == ["subgroups"]
    assert document["buffers"] == [8, 12]
    assert document["shaders"] == [COPY.wgsl]
    assert document["kernels"] == [
        {
            "name": "copy",
            "shader": 0,
            "entry": "main",
            "access": ["read", "write"],
            "constants": {"add": 5.0},
        }
    ]
    assert document["setup"] == [
        ["write", 0, 4, 0, 4],
        ["write", 1, 0, 4, 8],
        ["copy", 0, 0, 1, 4, 4],
        ["run", 0],
        ["destroy", 0],
    ]
    assert document["programs"][1] == {
        "dispatches": [[0, [0, 1], [1, 1, 1]]] * 2,
        "step": 0,
        "result": 1,
        "resultBytes": 8,
    }
    assert exporter.held_bytes == 12


def test_nothing_runs_here(exporter: ExportDevice) -> None:
    x = exporter.buffer(8, "x")
    program = exporter.program([Dispatch(COPY, (x, exporter.buffer(8, "y")), (1, 1, 1))], step=x)
    with pytest.raises(BackendError, match="runs in the page"):
        program.submit(memoryview(bytes(8)))
    with pytest.raises(BackendError, match="nothing can be read"):
        exporter.read(x, 0, 4)
    with pytest.raises(BackendError, match="exceed a buffer of swiftshader"):
        exporter.buffer(SWIFTSHADER.max_buffer_bytes + 4, "large")


@dataclass(frozen=True, slots=True)
class Replay:
    """An exported model on another device, from its two files alone."""

    document: dict[str, Any]
    programs: list[Any]

    def round(self, plan: str, step: NDArray[np.int32]) -> NDArray[np.int32]:
        program = self.programs[self.document["plans"][plan]["program"]]
        return np.frombuffer(program.submit(step.data.cast("B")).wait(), np.int32)


def replayed(device: Device, path: Path) -> Replay:
    document = json.loads(path.with_suffix(".json").read_text())
    data = memoryview(path.with_suffix(".bin").read_bytes())
    buffers = [device.buffer(size, f"b{i}") for i, size in enumerate(document["buffers"])]
    kernels = [
        Kernel(
            k["name"],
            document["shaders"][k["shader"]],
            tuple(k["access"]),
            tuple(k["constants"].items()),
            k["entry"],
        )
        for k in document["kernels"]
    ]
    programs = [
        device.program(
            [
                Dispatch(kernels[kernel], tuple(buffers[b] for b in bound), tuple(grid))
                for kernel, bound, grid in p["dispatches"]
            ],
            step=None if p["step"] is None else buffers[p["step"]],
            result=None if p["result"] is None else buffers[p["result"]],
            result_bytes=p["resultBytes"],
        )
        for p in document["programs"]
    ]
    for what, *a in document["setup"]:
        if what == "write":
            device.write(buffers[a[0]], a[1], data[a[2] : a[2] + a[3]])
        elif what == "run":
            programs[a[0]].submit(memoryview(b""))
        else:
            assert what == "destroy"
            device.destroy(buffers[a[0]])
    return Replay(document, programs)


GROUP = Group("full", 16, 5)


def compiled(device: Device, folder: Path, key: PlanKey) -> WebGpuPlan:
    backend = WebGpuBackend(device, lanes=1)
    with closing(open_checkpoint(folder)) as checkpoint:
        resources = ModelResources(
            backend, checkpoint.tensors, F32, Groups(GROUP, Group("state", 1, 2)), 64
        )
        decoder = Decoder(checkpoint.config, resources)
        recorder = Recorder(key, backend.missing)
        decoder(recorder)
        return backend.compile(recorder.finish([GROUP]))


@pytest.mark.vulkan
def test_a_replay_gives_the_same_bits(device: WgpuDevice, data_dir: Path, tmp_path: Path) -> None:
    folder = data_dir / "golden" / "llama"
    key = PlanKey(16, 1, 64, "logits")
    exporter = ExportDevice(device.info, tmp_path / "llama")
    exporter.save({"prefill": compiled(exporter, folder, key)})
    exporter.close()

    plan = compiled(device, folder, key)
    step = np.zeros(plan.layout.words, np.int32)
    fields = {
        "valid_rows": 11,
        "valid_seqs": 1,
        "token": np.arange(11),
        "position": np.arange(11),
        "length": 11,
        "last_row": 10,
        "full.row_slot": 16 + np.arange(11),
        "full.table": np.arange(1, 5),
    }
    for name, values in fields.items():
        at = plan.layout.offset[name]
        step[at : at + np.size(values)] = values
    replay = replayed(device, tmp_path / "llama")
    assert replay.document["plans"]["prefill"]["offset"] == plan.layout.offset
    with pytest.raises(StopIteration) as done:
        plan.submit(step).__await__().send(None)
    logits = done.value.value.logits
    assert np.abs(logits[:11]).max() > 1
    got = replay.round("prefill", step).view(np.float32).reshape(logits.shape)
    np.testing.assert_array_equal(got[:11], logits[:11])
