"""zllm bench --tune: every setting is tried on a model, and what was found is used afterwards."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from zllm.bin import bench_tune, main
from zllm.embedded import Engine

FLAGS = ["bench", "--tune", "--backend", "webgpu"]


@pytest.fixture
def as_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """The software adapter takes the kernels of GPUs; two settings are tried; the cache folder."""
    from zllm.backend.webgpu import tune
    from zllm.backend.webgpu.wgpu_device import WgpuDevice

    made = WgpuDevice.__init__

    def opened(device: Any, adapter: Any, /, **options: Any) -> None:
        made(device, adapter, **options)
        device.info = replace(device.info, software=False)

    monkeypatch.setattr(WgpuDevice, "__init__", opened)
    monkeypatch.setattr(tune, "SETTINGS", tune.SETTINGS[:2])
    monkeypatch.setenv("ZLLM_CACHE", str(tmp_path / "cache"))
    yield tmp_path / "cache"


@pytest.mark.vulkan
@pytest.mark.usefixtures("as_gpu")
def test_settings_are_tried_and_the_best_is_used(
    data_dir: Path,
    as_gpu: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from zllm.backend.webgpu import tracing, tune

    model = data_dir / "golden" / "llama"
    monkeypatch.setattr(tracing, "busy_program", lambda device: None)
    monkeypatch.setattr(tune, "WORTH", 1e9)  # the machine's mood decides nothing
    assert main.main([*FLAGS, "--model", str(model), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    tried = [(t["tokens"], t["few"]) for t in report["tried"]]
    assert [tokens for tokens, _ in tried] == [1, 1, 1, 8, 8, 8]
    assert tried[0][1] is None and tried[1][1] != tried[2][1]
    assert all(t["right"] and t["ms"]["f32"] > 0 for t in report["tried"])
    assert [c["tokens"] for c in report["found"]] == [1, 8]
    with Engine(model=model, backend="webgpu", lanes=1) as engine:
        backend: Any = engine.backend
        few = backend.device.info.tuning.few("f32", 1, pairs=False)
    assert report["found"][0]["few"] == {
        name: getattr(few, name) for name in report["found"][0]["few"]
    }
    assert (as_gpu / "tuning.json").is_file()


def test_text() -> None:
    few = {"threads": 64, "rows": 2}
    report = {
        "model": "m",
        "adapter": "a",
        "tried": [
            {"tokens": 1, "few": None, "ms": {"f16": 2.0}, "right": True},
            {"tokens": 1, "few": few, "ms": {"f16": 1.5}, "right": True},
            {"tokens": 1, "few": {"threads": 8}, "ms": {"f16": 1.0}, "right": False},
        ],
        "found": [{"format": "f16", "tokens": 1, "few": few}],
    }
    lines = bench_tune._lines(report)
    assert lines[1] == "f16, 1 at once: 2.000 -> 1.500 ms with threads 64, rows 2"
    assert lines[2] == "3 settings tried, 1 gave other answers" and lines[3].startswith("kept in ")
    assert bench_tune._lines({**report, "found": []})[1] == "nothing is worth a change"


@pytest.mark.vulkan
def test_a_cpu_has_nothing_to_tune(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main([*FLAGS, "--model", str(data_dir / "golden" / "llama")]) == 1
    assert "computes on the CPU: its kernels have nothing to tune" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--backend", "oracle"], "--tune is about kernels"),
        (["--growth"], "--tune has no meaning with --growth"),
        (["--kl", "oracle"], "--tune has no meaning with --kl"),
        (["--trace", "t.json"], "--tune has no meaning with --trace"),
    ],
)
def test_bad_flags_are_one_line(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main([*FLAGS, "--model", "/no/model", *argv]) == 1
    out, err = capsys.readouterr()
    assert out == "" and message in err and len(err.splitlines()) == 1
