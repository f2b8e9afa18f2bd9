"""The benchmark scripts: a comparison says what was measured."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import compare_llamacpp, machine


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
