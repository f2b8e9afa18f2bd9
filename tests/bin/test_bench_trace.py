"""zllm bench --trace: a file that a viewer reads, figures that add up, a picture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from zllm.bin import main
from zllm.weight.checkpoint import open_checkpoint

SMALL = ["--prompt-tokens", "12", "--decode-prompt", "8", "--new-tokens", "6", "--runs", "1"]


@pytest.fixture
def model(data_dir: Path) -> Path:
    return data_dir / "golden" / "llama"


def trace(model: Path, tmp_path: Path, *argv: str) -> Any:
    path = tmp_path / "trace.json"
    flags = ["--model", str(model), "--backend", "webgpu", "--trace", str(path), *SMALL]
    assert main.main(["bench", *flags, *argv]) == 0
    return json.loads(path.read_text())


@pytest.mark.vulkan
def test_every_kernel_is_an_event(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = trace(model, tmp_path, "--json")
    report = json.loads(capsys.readouterr().out)
    assert found["otherData"] == report
    events = [e for e in found["traceEvents"] if e["ph"] == "X"]
    kernels = [e for e in events if e["tid"] == 2]
    rounds = [e for e in events if e["tid"] == 1]
    assert [r["name"] for r in rounds][:2] == ["prefill of 12, round 1", "decode at 8, round 1"]
    decoded = len(rounds) - 1
    assert decoded == 5
    total = report["prefill"]["kernels"] + decoded * report["decode"]["kernels"]
    assert len(kernels) == total
    assert min(e["ts"] for e in events) == 0
    for kernel in kernels:
        inside = [r for r in rounds if r["ts"] <= kernel["ts"] <= r["ts"] + r["dur"]]
        assert len(inside) == 1
        about = kernel["args"]
        share = about["GB/s"] * 1e9 / report["copy_bytes_per_s"]
        assert about["share of bandwidth"] == pytest.approx(share)
    ms = sum(k["dur"] for k in kernels if k["ts"] >= rounds[1]["ts"]) / 1000 / decoded
    assert sum(g["ms"] for g in report["decode"]["groups"]) == pytest.approx(ms)
    names = {e["args"]["name"] for e in found["traceEvents"] if e["ph"] == "M"}
    assert {"rounds", "kernels"} < names


@pytest.mark.vulkan
def test_groups_are_what_layers_have_in_common(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = trace(model, tmp_path, "--batch", "2")["otherData"]
    out = capsys.readouterr().out
    assert f"; a copying kernel: {report['copy_bytes_per_s'] / 1e9:,.1f} GB/s" in out
    groups = {(g["op"], g["weight"]): g for g in report["decode"]["groups"]}
    layers = groups["linear", "down"]["dispatches"]
    config = open_checkpoint(model).config
    assert layers == groups["attend", ""]["dispatches"] == config.layers
    # Two sequences: twice the operations of one.
    down = groups["linear", "down"]
    assert down["tflop_s"] * down["ms"] * 1e9 == pytest.approx(
        2 * 2 * layers * config.ffn_width * config.width
    )
    times = [g["ms"] for g in report["decode"]["groups"]]
    assert times == sorted(times, reverse=True)
    assert "decode at 8: " in out and "linear, down, product" in out


@pytest.mark.vulkan
def test_picture(model: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    trace(model, tmp_path, "--plot", str(tmp_path / "plot.png"))
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--trace", "/no/such/f.json"], "--trace: cannot write /no/such/f.json"),
        (["--trace", "FOLDER"], "--trace: cannot write"),
        (["--trace", "FOLDER/t.json", "--plot", "/no/p.png"], "--plot: cannot write /no/p.png"),
        (["--trace", "FOLDER/t.json", "--backend", "oracle"], "--trace is about kernels"),
        (["--trace", "FOLDER/t.json", "--growth"], "--trace has no meaning with --growth"),
        (["--trace", "FOLDER/t.json", "--kl", "oracle"], "--trace has no meaning with --kl"),
        (["--plot", "FOLDER/p.png"], "--plot has no meaning without --growth or --trace"),
    ],
)
def test_bad_flags_are_one_line_before_anything_is_opened(
    tmp_path: Path, argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = [word.replace("FOLDER", str(tmp_path)) for word in argv]
    assert main.main(["bench", "--model", "/no/model", *flags]) == 1
    out, err = capsys.readouterr()
    assert out == "" and message in err and len(err.splitlines()) == 1
