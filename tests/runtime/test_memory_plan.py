"""What a device is said to hold is what it holds; too much is refused before any upload."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.helpers.tiny_model import GOLDEN
from zllm.embedded import Engine
from zllm.errors import BackendError, Notice
from zllm.runtime import memory_plan
from zllm.runtime.memory_plan import Budgeted, MemoryPlan, Needs
from zllm.runtime.survey import survey

MODELS = ["llama", "gemma3", "gpt_oss_mxfp4", "deepseek_v3_fp8", "kimi_linear", "deepseek_v4"]


def needs_of(engine: Engine, lanes: int) -> Needs:
    file = engine.model.checkpoint
    assert isinstance(engine.backend, Budgeted)
    layers = survey(file.architecture, file.config, file.tensors)
    return Needs(layers, engine.backend, lanes=lanes, vocabulary=engine.model.vocabulary)


@pytest.mark.vulkan
@pytest.mark.parametrize("kv_dtype", ["f16", "f32"])
@pytest.mark.parametrize("folder", MODELS)
def test_the_plan_is_what_is_held(folder: str, kv_dtype: Any) -> None:
    with Engine(model=GOLDEN / folder, backend="webgpu", lanes=2, kv_dtype=kv_dtype) as engine:
        prompt = [1 + i % 50 for i in range(min(80, engine.context - 8))]
        engine.generate({"tokens": prompt, "max_tokens": 4, "temperature": 1, "seed": 3})
        held = engine.backend.memory()
        plan = needs_of(engine, lanes=2).at(engine.context, engine._setup.cache_tokens)
    assert plan.weights == held["weights"]
    assert plan.cache + plan.state == held["caches"]
    assert held["activations"] <= plan.activations + FIXED_BYTES


# Step words, records and readbacks: a few KiB whatever the model, which these tiny ones show.
FIXED_BYTES = 2 << 20


@pytest.mark.vulkan
def test_a_model_of_its_size(smollm2_path: Path) -> None:
    with Engine(model=smollm2_path, backend="webgpu", context=512, lanes=4) as engine:
        request = {"tokens": list(range(3, 100)), "max_tokens": 3, "temperature": 0}
        engine.generate_many([request] * 4)
        held = engine.backend.memory()
        plan = needs_of(engine, lanes=4).at(512, engine._setup.cache_tokens)
    assert plan.weights == held["weights"]
    assert plan.cache == held["caches"]
    assert held["activations"] <= plan.activations < plan.weights / 2


class Uploads(AssertionError):
    pass


@pytest.fixture
def no_upload(monkeypatch: pytest.MonkeyPatch) -> None:
    from zllm.backend.webgpu.backend import WebGpuBackend

    def load(*_: Any, **__: Any) -> None:
        raise Uploads

    monkeypatch.setattr(WebGpuBackend, "load", load)


@pytest.mark.vulkan
@pytest.mark.usefixtures("no_upload")
def test_too_much_is_refused_before_any_upload() -> None:
    options: dict[str, Any] = {"model": GOLDEN / "llama", "backend": "webgpu", "lanes": 2}
    with pytest.raises(BackendError, match=r"--device-memory allows 0 MiB: weights .* fewer bits"):
        Engine(**options, device_memory=1000)
    with pytest.raises(Uploads):
        Engine(**options, device_memory=1 << 30)


@pytest.mark.vulkan
def test_a_default_context_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    folder, lanes = GOLDEN / "llama", 2
    monkeypatch.setattr(memory_plan, "LEAST_CONTEXT", 16)
    with Engine(model=folder, backend="webgpu", lanes=lanes) as engine:
        whole = engine.context
        needs = needs_of(engine, lanes)
    enough = needs.at(whole // 2, whole // 2).total
    options: dict[str, Any] = {"model": folder, "backend": "webgpu", "lanes": lanes}
    with (
        pytest.warns(Notice, match=rf"context {whole // 2} instead of {whole}"),
        Engine(**options, device_memory=enough) as engine,
    ):
        assert engine.context == whole // 2
    with pytest.raises(BackendError, match=rf"{whole} tokens .*--context {whole // 2} fits"):
        Engine(**options, context=whole, device_memory=enough)
    # Room for one whole sequence is enough; it needs no notice.
    with Engine(**options, context=whole, device_memory=needs.at(whole, whole).total) as engine:
        assert engine._setup.context == whole


def test_the_oracle_has_no_device() -> None:
    with pytest.raises(BackendError, match="--device-memory"):
        Engine(model=GOLDEN / "llama", backend="oracle", device_memory=1 << 30)


@pytest.mark.vulkan
def test_a_refused_buffer_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    from zllm.backend.webgpu.wgpu_device import WgpuDevice, wgpu

    def refuse(*_: Any, **__: Any) -> None:
        raise wgpu.GPUOutOfMemoryError("Not enough memory left.")

    opened = WgpuDevice.__init__

    def init(device: WgpuDevice, *args: Any, **options: Any) -> None:
        opened(device, *args, **options)
        monkeypatch.setattr(device.handle, "create_buffer", refuse)

    monkeypatch.setattr(WgpuDevice, "__init__", init)
    with pytest.raises(BackendError) as refused:
        Engine(model=GOLDEN / "llama", backend="webgpu")
    text = str(refused.value)
    assert "\n" not in text and "out of memory" in text and "--context" in text


def test_parts_add_up() -> None:
    assert MemoryPlan(1, 2, 4, 8).total == 15
