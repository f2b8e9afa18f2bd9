"""zllm doctor: it finds what is there, and survives what is not."""

from __future__ import annotations

import builtins
import importlib.util
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from zllm.bin import adapters, doctor, main


def named(findings: list[doctor.Finding], name: str) -> list[doctor.Finding]:
    return [finding for finding in findings if finding.name == name]


@pytest.fixture
def no_adapters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapters, "probe", lambda: ([], ""))


def hide(monkeypatch: pytest.MonkeyPatch, *modules: str) -> None:
    """Make modules look uninstalled, to import and to find_spec alike."""
    find_spec, load = importlib.util.find_spec, builtins.__import__

    def hidden_spec(name: str, *args: Any) -> Any:
        return None if name in modules else find_spec(name, *args)

    def hidden_load(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.partition(".")[0] in modules:
            raise ModuleNotFoundError(f"No module named {name!r}")
        return load(name, *args, **kwargs)

    monkeypatch.setattr(importlib.util, "find_spec", hidden_spec)
    monkeypatch.setattr(builtins, "__import__", hidden_load)
    for name in [name for name in sys.modules if name.partition(".")[0] in modules]:
        monkeypatch.delitem(sys.modules, name)


@pytest.mark.vulkan
def test_json_names_every_check_and_the_adapter(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["doctor", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] is True
    assert {"zllm", "python", "numpy", "cpu", "cache", "webgpu", "extra"} <= {
        finding["name"] for finding in report["findings"]
    }
    found = [f["data"] for f in report["findings"] if f["name"] == "webgpu" and f["data"]]
    assert found
    # WebGPU's own minimum for this limit: 128 MiB
    assert all(a["limits"]["max-storage-buffer-binding-size"] >= 1 << 27 for a in found)


@pytest.mark.usefixtures("no_adapters")
def test_text_puts_advice_under_a_finding(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("warn  webgpu    no adapter"))
    assert lines[at + 1].strip().startswith("→ install a GPU driver")


@pytest.mark.usefixtures("no_adapters")
def test_missing_numpy_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hide(monkeypatch, "numpy")
    assert main.main(["doctor", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    (numpy,) = (f for f in report["findings"] if f["name"] == "numpy")
    assert (numpy["status"], numpy["advice"]) == ("fail", "pip install numpy")


def test_missing_packages_are_findings(monkeypatch: pytest.MonkeyPatch) -> None:
    hide(monkeypatch, "wgpu", "yaml", "tqdm")
    findings = doctor.examine()
    assert {f.detail for f in named(findings, "package")} == {
        "PyYAML is not installed",
        "tqdm is not installed",
    }
    assert named(findings, "webgpu")[0].detail == "wgpu is not installed"


@pytest.mark.usefixtures("no_adapters")
def test_check_that_breaks_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Iterable[doctor.Finding]:
        raise OSError("no such thing")

    monkeypatch.setitem(doctor.CHECKS, "cpu", broken)
    (cpu,) = named(doctor.examine(), "cpu")
    assert (cpu.status, cpu.detail) == ("warn", "could not be checked: OSError: no such thing")


@pytest.mark.usefixtures("no_adapters")
def test_unwritable_cache_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.write_text("")
    monkeypatch.setenv("ZLLM_CACHE", str(in_the_way / "cache"))
    (cache,) = named(doctor.examine(), "cache")
    assert cache.status == "warn"
    assert "cannot be written" in cache.detail and "ZLLM_CACHE" in cache.advice


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "ended with code -11"),
        ("raise OSError('no loader')", "OSError: no loader"),
        ("import time; time.sleep(60)", "timed out"),
    ],
    ids=["crash", "error", "hang"],
)
def test_broken_driver_is_outlived(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: str, reason: str
) -> None:
    (tmp_path / "broken_driver.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(adapters, "__name__", "broken_driver")
    monkeypatch.setattr(adapters, "TIMEOUT_SECONDS", 2)
    found, problem = adapters.probe()
    assert found == []
    assert reason in problem


def test_kernels_tell_what_was_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZLLM_CACHE", str(tmp_path))
    assert not list(doctor.CHECKS["kernels"]())
    verdicts = {"one": {"a": "right", "b": "right"}, "two": {"a": "right", "b": "wrong"}}
    (tmp_path / "kernels.json").write_text(json.dumps({"version": 1, "adapters": verdicts}))
    right, wrong = doctor.CHECKS["kernels"]()
    assert (right.status, right.detail) == ("ok", "one: 2 of 2 kernels checked and right")
    assert wrong.status == "warn" and wrong.detail.startswith("two: 1 of 2")
    assert wrong.advice.startswith("1 are wrong")
    (tmp_path / "kernels.json").write_text("{")
    (damaged,) = doctor.CHECKS["kernels"]()
    assert damaged.status == "warn" and "damaged" in damaged.detail
