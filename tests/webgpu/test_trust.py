"""A wrong kernel is found before it answers anything, replaced, and told of; once per adapter."""

from __future__ import annotations

import asyncio
import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from zllm.backend.selftest import cases
from zllm.backend.verdicts import RIGHT, WRONG, Verdicts, digest
from zllm.backend.webgpu import launch, trust
from zllm.backend.webgpu.backend import WebGpuBackend
from zllm.embedded import Engine
from zllm.errors import BackendError, Notice

pytestmark = pytest.mark.vulkan

GOLDEN = Path(__file__).parents[1] / "data" / "golden"
LLAMA = GOLDEN / "llama"
TOLERANCE = 1e-4  # of the largest logit


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ZLLM_CACHE", str(tmp_path))
    return tmp_path / "kernels.json"


@pytest.fixture
def probes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ops that were probed."""
    real, probed = cases.case_of, []

    def counted(op: Any, *args: Any, **more: Any) -> Any:
        probed.append(op.name)
        return real(op, *args, **more)

    monkeypatch.setattr(cases, "case_of", counted)
    return probed


def seed(monkeypatch: pytest.MonkeyPatch, kernels: tuple[str, ...], right: str, wrong: str) -> None:
    """Kernels whose names begin so have `wrong` where the source says `right`."""
    real = launch.lower

    def lower(op: Any, context: Any) -> Any:
        return [faulty(dispatch) for dispatch in real(op, context)]

    def faulty(dispatch: Any) -> Any:
        kernel = dispatch.kernel
        if not kernel.name.startswith(kernels):
            return dispatch
        assert right in kernel.wgsl, kernel.name
        text = kernel.wgsl.replace(right, wrong)
        return replace(dispatch, kernel=replace(kernel, wgsl=text))

    monkeypatch.setattr("zllm.backend.webgpu.trust.lower", lower)


@contextmanager
def opened() -> Iterator[tuple[Engine, list[str]]]:
    """An engine, and what it told until it was closed."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        told: list[str] = []
        with Engine(model=LLAMA, backend="webgpu", context=128, lanes=2, kv_dtype="f32") as engine:
            yield engine, told
            told += [str(w.message) for w in caught if w.category is Notice]


def error_of(engine: Engine) -> float:
    golden = np.load(LLAMA / "golden.npz")
    (logits,) = engine.logits([golden["p1_ids"].tolist()], [29, 21, 1, 20])
    truth = golden["p1_truth"]
    return float(np.abs(logits - truth).max() / np.abs(truth).max())


COLUMN = (  # the last column is not written
    " < COLUMNS) {\n                out",
    " + 1u < COLUMNS) {\n                out",
)


def test_right_kernels_are_probed_once(cache: Path, probes: list[str]) -> None:
    with opened() as (engine, told):
        assert error_of(engine) <= TOLERANCE
    assert not told
    assert {"embed", "rms_norm", "linear", "gated_linear", "rope_append", "attend"} <= set(probes)
    (verdicts,) = json.loads(cache.read_text())["adapters"].values()
    assert set(verdicts.values()) == {RIGHT}
    probes.clear()
    with opened() as (engine, told):
        assert error_of(engine) <= TOLERANCE
    assert not told and not probes


@pytest.fixture
def three_banks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Matrices of experts are too large for a buffer."""
    real = WebGpuBackend.load

    def load(self: WebGpuBackend, name: str, parts: Any, /, **how: Any) -> Any:
        together = how.get("together", 1)
        if together > 1 and how.get("most") is None:
            experts = sum(part.shape[0] for part in parts) // together
            how["most"] = -(-experts // 3) * together
        return real(self, name, parts, **how)

    monkeypatch.setattr(WebGpuBackend, "load", load)


@pytest.mark.usefixtures("three_banks")
@pytest.mark.parametrize("choice", [">= BANK_FIRST_1", "> BANK_FIRST_1"], ids=["", "wrong"])
def test_experts_of_several_banks(
    cache: Path, monkeypatch: pytest.MonkeyPatch, choice: str
) -> None:
    seed(monkeypatch, ("experts_lanes",), ">= BANK_FIRST_1", choice)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with Engine(model=GOLDEN / "qwen3_moe", backend="webgpu", context=128, lanes=2) as engine:
            engine.logits([[1, 2, 3, 4, 5]], [4, 1])
    wrong = [str(w.message) for w in told if "the kernel of experts is wrong" in str(w.message)]
    (verdicts,) = json.loads(cache.read_text())["adapters"].values()
    assert set(verdicts.values()) == ({RIGHT} if choice.startswith(">=") else {RIGHT, WRONG})
    assert len(wrong) == (0 if choice.startswith(">=") else 1)


def test_a_dropped_column_gives_way_to_the_reference(
    monkeypatch: pytest.MonkeyPatch, probes: list[str]
) -> None:
    seed(monkeypatch, ("rms_norm",), *COLUMN)
    with opened() as (engine, told):
        assert error_of(engine) <= TOLERANCE
    assert len(told) == 1
    assert "the kernel of rms_norm is wrong on this adapter" in told[0]
    assert "replaced by the NumPy reference" in told[0] and "\n" not in told[0]
    probes.clear()
    with opened() as (engine, told):
        assert error_of(engine) <= TOLERANCE
    assert len(told) == 1 and not probes  # the verdict was kept


def test_a_page_checks_once_a_plan_is_made(
    cache: Path, monkeypatch: pytest.MonkeyPatch, probes: list[str]
) -> None:
    real = trust.Trust.__init__

    def init(self: Any, *args: Any, **options: Any) -> None:
        real(self, *args, **options | {"later": True})

    monkeypatch.setattr(trust.Trust, "__init__", init)
    seed(monkeypatch, ("rms_norm",), *COLUMN)
    with opened() as (engine, told):
        assert not probes and not cache.exists()
        asyncio.run(engine.settle_kernels())
        assert set(probes) > {"rms_norm", "linear", "attend"}
        assert error_of(engine) <= TOLERANCE
    assert len(told) == 1 and "the kernel of rms_norm is wrong on this adapter (" in told[0]
    (verdicts,) = json.loads(cache.read_text())["adapters"].values()
    assert list(verdicts.values()).count(WRONG) == 2  # with subgroups, and without
    probes.clear()
    with opened() as (engine, told):
        asyncio.run(engine.settle_kernels())
        assert error_of(engine) <= TOLERANCE
    assert not probes and len(told) == 1


def test_the_fault_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without trust the same fault spoils the logits."""
    seed(monkeypatch, ("rms_norm",), *COLUMN)

    async def nothing(*_: Any, **__: Any) -> tuple[set[str], str]:
        return set(), ""

    monkeypatch.setattr(trust.Trust, "_probe", nothing)
    with opened() as (engine, _):
        assert error_of(engine) > 1e-2


def test_a_wrong_product_gives_way_to_another_shape(
    monkeypatch: pytest.MonkeyPatch, probes: list[str]
) -> None:
    seed(monkeypatch, ("product_lanes",), "b < BLOCKS; b++", "b + 1u < BLOCKS; b++")
    with opened() as (engine, told):
        assert error_of(engine) <= TOLERANCE
        backend: Any = engine.backend
        assert backend.rounds_in_flight == 1 or not backend.device.info.software
    assert any("linear" in text and "replaced by the kernels for GPUs" in text for text in told)
    assert not any("reference" in text for text in told)
    assert probes.count("linear") >= 2


@pytest.mark.parametrize("wrong", ["attend(unit: u33, ", "attend(unit: u32 "])
def test_a_refused_shader_gives_way(monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    seed(monkeypatch, ("attend_lanes",), "attend(unit: u32, ", wrong)
    with opened() as (engine, told):
        assert error_of(engine) <= TOLERANCE
    assert len(told) == 1 and "attend is wrong" in told[0] and "\n" not in told[0]


def test_short_memory_is_no_verdict(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def short(*args: Any, **more: Any) -> Any:
        raise BackendError("activations: 1.0 MiB of device memory: the device is out of memory")

    monkeypatch.setattr("zllm.backend.selftest.run.checked", short)
    with pytest.raises(BackendError, match="out of memory"), opened():
        pass
    assert not cache.exists()


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b'{"version": 1}', b'{"version": 1, "adapters": {"x": {"y": "perhaps"}}}'],
)
def test_a_damaged_file_is_ignored(cache: Path, content: bytes) -> None:
    cache.write_bytes(content)
    with pytest.warns(Notice, match="damaged and ignored"):
        assert Verdicts(cache, "adapter").of == {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        Verdicts(cache, "adapter").add({"a": RIGHT})
    assert Verdicts(cache, "adapter").of == {"a": RIGHT}


def test_verdicts_belong_to_an_adapter_and_processes_do_not_undo_each_other(cache: Path) -> None:
    first, second = Verdicts(cache, "one, driver 1"), Verdicts(cache, "one, driver 1")
    first.add({"a": RIGHT})
    second.add({"b": WRONG})
    Verdicts(cache, "one, driver 2").add({"c": RIGHT})
    assert Verdicts(cache, "one, driver 1").of == {"a": RIGHT, "b": WRONG}
    assert Verdicts(cache, "one, driver 2").of == {"c": RIGHT}
    assert digest("linear", "text") != digest("gated_linear", "text")
    assert [path.name for path in cache.parent.iterdir()] == [cache.name]


def test_a_folder_that_cannot_be_written_costs_only_time(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    verdicts = Verdicts(tmp_path / "file" / "kernels.json", "adapter")
    verdicts.add({"a": RIGHT})
    assert verdicts.of == {"a": RIGHT}


def test_probes_leave_no_memory_behind() -> None:
    held: list[int] = []
    for _ in range(2):  # the second knows every verdict
        with opened() as (engine, _):
            backend: Any = engine.backend
            held.append(backend.device.held_bytes)
    assert held[0] - held[1] <= 1 << 16  # readback buffers of the cases' results


@pytest.mark.parametrize(
    ("kernels", "end"),
    [
        (("product_rows", "product_staged", "product_tile"), "the kernels for software adapters"),
        (("product",), "the NumPy reference"),
    ],
    ids=["another shape", "reference"],
)
def test_a_fused_product_gives_way(
    monkeypatch: pytest.MonkeyPatch, kernels: tuple[str, ...], end: str
) -> None:
    """As a GPU has it, with the norm folded in: the reference knows only the two apart."""
    from zllm.backend.webgpu.wgpu_device import WgpuDevice

    real = WgpuDevice.__init__

    def init(self: Any, *args: Any, **options: Any) -> None:
        real(self, *args, **options)
        self.info = replace(self.info, software=False)

    monkeypatch.setattr(WgpuDevice, "__init__", init)
    seed(monkeypatch, kernels, "fn main(", "fn main{")
    with opened() as (engine, told):
        golden = np.load(LLAMA / "golden.npz")
        (logits,) = engine.logits([golden["p1_ids"].tolist()[:24]], [20, 1, 3])
    truth = golden["p1_truth"][:24]
    assert np.abs(logits - truth).max() <= TOLERANCE * np.abs(truth).max()
    assert {text.split(" is wrong")[0] for text in told} >= {"webgpu: the kernel of norm_linear"}
    assert all(end in text for text in told)
