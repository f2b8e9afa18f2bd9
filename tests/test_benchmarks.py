"""The benchmark scripts: the model they make runs, and a comparison says what was measured."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import compare_llamacpp, machine
from benchmarks.random_model import WIDTH, write_random_model
from tests.helpers.llama_gguf import as_array
from zllm.bin import main
from zllm.embedded import Engine
from zllm.weight.checkpoint import open_checkpoint


@pytest.fixture(scope="module")
def random_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("random") / "m.gguf"
    return write_random_model(path, layers=2, vocabulary=512)


def test_random_model_has_the_formats_and_the_spread_of_a_real_one(random_model: Path) -> None:
    checkpoint = open_checkpoint(random_model)
    up = as_array(checkpoint.tensors["layers.1.up"])
    assert up.std() == pytest.approx(WIDTH**-0.5, rel=0.05)
    assert abs(up.mean()) < 0.01 * up.std()
    assert as_array(checkpoint.tensors["embed"]).std() == pytest.approx(WIDTH**-0.5, rel=0.05)
    checkpoint.close()


def test_random_model_answers_tokens_and_is_seeded(random_model: Path, tmp_path: Path) -> None:
    again = write_random_model(tmp_path / "again.gguf", layers=2, vocabulary=512)
    assert again.read_bytes() == random_model.read_bytes()
    with Engine(model=random_model, backend="oracle") as engine:
        request = {"tokens": [1, 2, 3], "max_tokens": 8, "temperature": 0, "return_token_ids": True}
        ids = engine.generate(request)["choices"][0]["token_ids"]
        assert len(ids) == 8 and len(set(ids)) > 1


def test_bench_runs_on_the_random_model(
    random_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lengths = ["--prompt-tokens", "16", "--new-tokens", "4", "--runs", "1"]
    argv = ["bench", "--model", str(random_model), "--backend", "oracle", "--json", *lengths]
    assert main.main(argv) == 0
    assert json.loads(capsys.readouterr().out)["decode_tok_s"]["best"] > 0


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
    random_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, text, data = compare(random_model, tmp_path, monkeypatch, ["oracle"], PEER)
    assert code == 0
    assert len(data["peers"]) == 2  # before and after
    assert data["peers"][0]["argv"][1:4] == [str(random_model), "--prompt-tokens", "16"]
    decode = data["backends"]["oracle"]["decode_tok_s"]["best"]
    assert f"{decode:.1f} ({decode / 10:.2f} ×)" in text
    assert "decode in turn 10.0, 10.0" in text
    assert "× its matrix products" in text
    assert str(tmp_path) not in text and data["machine"]["cores"]


def test_what_could_not_be_measured_is_told(
    random_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = "raise SystemExit('no module llama_cpp')"
    code, text, data = compare(random_model, tmp_path, monkeypatch, ["oracle"], broken)
    assert code == 1
    assert data["peers"][0] == {"error": "no module llama_cpp"}
    assert "| llama.cpp | - | - | - | no module llama_cpp |" in text
    assert "| oracle | " in text and "(" not in text.split("| oracle | ")[1].split("|")[0]


def test_second_result_of_a_day_gets_a_number(tmp_path: Path) -> None:
    data = {"machine": machine.describe()}
    names = [machine.write("x", "text", data, tmp_path)[0].name for _ in range(3)]
    day = data["machine"]["date"][:10]
    assert names == [f"{day}-x.md", f"{day}-x-2.md", f"{day}-x-3.md"]
