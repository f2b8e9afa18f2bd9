"""zllm tokenize: ids as a program and as a person reads them, without the weights."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.helpers.cpu_time import run_timed
from zllm.bin import main


@pytest.fixture
def chain(data_dir: Path) -> str:
    return str(data_dir / "cases" / "chain-a")


def ids_of(argv: list[str], capsys: pytest.CaptureFixture[str]) -> list[int]:
    assert main.main(["tokenize", *argv, "--json"]) == 0
    ids: list[int] = json.loads(capsys.readouterr().out)["ids"]
    return ids


def test_control_tokens_are_found_unless_told_otherwise(
    chain: str, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["--model", chain, "--text", "x<|end|>y"]
    assert ids_of(argv, capsys) == [120, 315, 121]
    plain = [120, 60, 124, 101, 110, 100, 124, 62, 121]  # case A07
    assert ids_of([*argv, "--no-special"], capsys) == plain


def test_golden_strings_of_smollm2(
    smollm2_path: Path, data_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import base64

    golden = json.loads((data_dir / "text" / "tokenizer_smollm2.json").read_text())
    file = tmp_path / "text"
    argv = ["--model", str(smollm2_path), "--text-file", str(file)]
    items = [item for item in golden["items"] if item["ids"] != item["ids_no_special"]]
    items += [item for item in golden["items"] if item["text"] is None]  # not valid UTF-8
    assert len(items) >= 4
    for item in items:
        file.write_bytes(base64.b64decode(item["bytes_b64"]))
        assert ids_of(argv, capsys) == item["ids"]
        assert ids_of([*argv, "--no-special"], capsys) == item["ids_no_special"]


def test_text_for_people(chain: str, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["tokenize", "--model", chain, "--text", "a tick\n\x1b"]
    assert main.main(argv) == 0
    assert capsys.readouterr().out == "97 305 10 27\n"
    assert main.main([*argv, "--pieces"]) == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["97", "'a'"],
        ["305", "'", "tick'"],
        ["10", "'\\n'"],
        ["27", "'\\x1b'"],
    ]


def test_empty_text_has_no_ids(chain: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert ids_of(["--model", chain, "--text", ""], capsys) == []


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "give either --text or --text-file"),
        (["--text", "a", "--text-file", "b"], "give either --text or --text-file"),
        (["--text-file", "/none/b"], "--text-file: cannot read /none/b: No such file"),
    ],
)
def test_bad_flags_are_one_line(
    chain: str, argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["tokenize", "--model", chain, *argv]) == 1
    out, err = capsys.readouterr()
    assert out == "" and message in err and len(err.splitlines()) == 1


def test_folder_without_tokenizer_is_one_line(
    data_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = str(data_dir / "golden" / "llama")
    assert main.main(["tokenize", "--model", model, "--text", "a"]) == 1
    err = capsys.readouterr().err
    assert "no tokenizer.json" in err and len(err.splitlines()) == 1


def test_start_is_fast_and_reads_no_weights(smollm2_path: Path, tmp_path: Path) -> None:
    # The end of the file is weights: whatever reads them now reads a hole.
    file = tmp_path / "holes.gguf"
    with smollm2_path.open("rb") as source, file.open("wb") as target:
        target.write(source.read(4 << 20))
        target.truncate(smollm2_path.stat().st_size)
    command = [sys.executable, "-m", "zllm.bin.main", "tokenize", "--model", str(file)]
    seconds = []
    for _ in range(3):
        out, cpu_seconds = run_timed([*command, "--text", "Hi"])
        assert out == "26843\n"
        seconds.append(cpu_seconds)
    assert min(seconds) < 1
