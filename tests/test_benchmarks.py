"""The benchmark scripts: a comparison says what was measured."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import compare_llamacpp, h200, machine


@pytest.fixture
def model(data_dir: Path) -> Path:
    return data_dir / "golden" / "llama"


PEER = """
import json, sys
print("chatter")
rates = {"best": 10.0, "all": [10.0]}
about = {"peer": "stand-in", "threads": 3, "load_s": 1, "argv": sys.argv[1:]}
print(json.dumps(about | {"prefill_tok_s": rates, "decode_tok_s": rates}))
"""


def compare(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backends: list[str], peer: str
) -> tuple[int, str, Any]:
    """Run the comparison with a stand-in for the peer's Python."""
    script = tmp_path / "peer"
    script.write_text(f"#!{sys.executable}\n{peer}")
    script.chmod(0o755)
    argv = ["compare", "--peer-python", str(script), "--model", str(model), "--runs", "2"]
    argv += ["--prompt-tokens", "16", "--new-tokens", "4", "--out", str(tmp_path / "out")]
    monkeypatch.setattr(sys, "argv", [*argv, "--backends", *backends])
    code = compare_llamacpp.main()
    (markdown,) = (tmp_path / "out").glob("*.md")
    (data,) = (tmp_path / "out").glob("*.json")
    return code, markdown.read_text(), json.loads(data.read_text())


def test_comparison_is_written_with_ratios(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, text, data = compare(model, tmp_path, monkeypatch, ["oracle"], PEER)
    assert code == 0
    assert len(data["peers"]) == 2  # before and after
    assert data["peers"][0]["argv"][1:4] == [str(model), "--prompt-tokens", "16"]
    decode = data["backends"]["oracle"]["decode_tok_s"]["best"]
    assert f"{decode:.1f} ({decode / 10:.2f} ×)" in text
    assert "decode in turn 10.0, 10.0" in text
    assert "× its matrix products" in text
    assert str(tmp_path) not in text and data["machine"]["cores"]


def test_what_could_not_be_measured_is_told(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = "raise SystemExit('no module llama_cpp')"
    code, text, data = compare(model, tmp_path, monkeypatch, ["oracle"], broken)
    assert code == 1
    assert data["peers"][0] == {"error": "no module llama_cpp"}
    assert "| llama.cpp | - | - | - | no module llama_cpp |" in text
    assert "| oracle | " in text and "(" not in text.split("| oracle | ")[1].split("|")[0]


def test_second_result_of_a_day_gets_a_number(tmp_path: Path) -> None:
    data = {"machine": machine.describe()}
    names = [machine.write("x", "text", data, tmp_path)[0].name for _ in range(3)]
    day = data["machine"]["date"][:10]
    assert names == [f"{day}-x.md", f"{day}-x-2.md", f"{day}-x-3.md"]


BENCH = """
import json, sys
flags = sys.argv[3:]
if "q4_0" in flags:
    print("chatter", file=sys.stderr)
    raise SystemExit("zllm: error: no adapter")
if "--trace" in flags:
    part = {"what": "all", "groups": [{"ms": 2.0}, {"ms": 0.5}]}
    print(json.dumps({"prefill": part, "decode": part, "flags": flags}))
    raise SystemExit
if "q8_0" in flags:
    print("zllm: a kernel gave way", file=sys.stderr)
short, more = {"ms_per_round": 10.0}, {"more_ms": 5.0, "read_ms": 2.0}
batch = float(flags[flags.index("--batch") + 1]) if "--batch" in flags else 1
print(json.dumps({
    "decode_tok_s": {"best": 200.0 * batch ** 0.5}, "share": 0.55, "prefill_tflop_s": 70.0,
    "copy_bytes_per_s": 4e12, "host_ms_per_round": {"median": 1.2}, "load_s": 3.0,
    "contexts": [short, more], "flags": flags,
}))
"""


def test_gpu_figures_stand_beside_what_was_promised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "bench"
    script.write_text(f"#!{sys.executable}\n{BENCH}")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    out = tmp_path / "new" / "figures.json"
    monkeypatch.setattr(sys, "argv", ["h200", "--out", str(out), "--more", "--layers 2"])
    assert h200.main() == 1
    data = json.loads(out.read_text())
    named = [*(m.name for m in h200.MEASUREMENTS), "f16 trace", "smollm2 trace", "glm trace"]
    assert list(data["measurements"]) == named
    assert str(out.parent / "trace-glm.json") in data["measurements"]["glm trace"]["flags"]
    assert data["measurements"]["q4_0"]["error"].endswith("no adapter")
    assert data["measurements"]["glm"]["flags"][-2:] == ["--layers", "2"]
    rows = [
        line.strip("| ").split(" | ") for line in out.with_suffix(".md").read_text().split("\n")
    ]
    verdicts = {row[0]: row[-1] for row in rows if len(row) > 3}
    assert verdicts["8B F16, share"] == "must"
    assert verdicts["8B F16, prefill of 2,048, TFLOP/s"] == "aim"
    assert verdicts["8B F16, batch 8 over batch 1"] == "missed"  # the square root of 8
    assert verdicts["SmolLM2, host ms a round"] == "must"
    assert verdicts["8k context over 2× reading + 0.25 t(128)"] == "must"  # 5 of 6.5 ms
    text = capsys.readouterr().out
    assert ", loaded in 3.0 s (0 s)\nzllm: a kernel gave way\n" in text
    assert "smollm2 trace: all: 2.50 ms; all: 2.50 ms (" in text
    assert "| 8B Q4_0, tokens/s | - | ≥ 230 | ≥ 343 | |" in text
    assert "| 8k context over 1.3× reading + 0.1 t(128) | 1.389 |  | ≤ 1 |  |" in text


def test_gpu_figures_keep_to_their_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "bench"
    script.write_text("#!/bin/sh\nexec sleep 60\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    monkeypatch.setattr(
        h200, "MEASUREMENTS", tuple(replace(m, limit_s=1) for m in h200.MEASUREMENTS[:3])
    )
    monkeypatch.setattr(h200, "TRACED", ())
    out = tmp_path / "figures.json"
    monkeypatch.setattr(sys, "argv", ["h200", "--out", str(out), "--budget", "6.5"])
    assert h200.main() == 1
    found = json.loads(out.read_text())["measurements"]
    assert 1 <= len(found) < 3  # the rest had less than five seconds left
    assert found["f16"]["error"] == "not done after 1 s"
