"""zllm logits: golden logits in files, all of them or none."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.helpers.files import write_safetensors
from zllm.bin import main
from zllm.quant.formats import decode
from zllm.weight.byte_source import FileSource
from zllm.weight.linear_weight import format_of
from zllm.weight.safetensors import open_safetensors

F32 = NDArray[np.float32]


@pytest.fixture
def model(data_dir: Path) -> Path:
    return data_dir / "golden" / "llama"


@pytest.fixture
def golden(model: Path) -> Any:
    return np.load(model / "golden.npz")


def ids(golden: Any, prompt: int) -> str:
    return ",".join(map(str, golden[f"p{prompt}_ids"].tolist()))


def run(model: Path, *argv: str | Path) -> int:
    return main.main(["logits", "--model", str(model), "--backend", "oracle", *map(str, argv)])


def assert_close(path: Path, truth: F32) -> None:
    found = np.load(path)
    assert found.dtype == np.float32
    assert found.shape == truth.shape
    assert np.abs(found - truth).max() <= 1e-4 * np.abs(truth).max()


def test_golden_logits(model: Path, golden: Any, tmp_path: Path) -> None:
    out = tmp_path / "l.npy"
    assert run(model, "--tokens", ids(golden, 0), "--out", out) == 0
    assert_close(out, golden["p0_truth"])
    assert list(tmp_path.iterdir()) == [out]


def test_split_may_cover_more_than_the_tokens(model: Path, golden: Any, tmp_path: Path) -> None:
    out = tmp_path / "l.npy"
    tokens = golden["p0_ids"].tolist()
    split = f"5,3,1,{len(tokens)}"
    assert run(model, "--tokens", ids(golden, 0), "--split", split, "--out", out) == 0
    assert_close(out, golden["p0_truth"])


def test_batch_goes_to_numbered_files(
    model: Path, golden: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokens = ["--tokens", ids(golden, 0), "--tokens", ids(golden, 2)]
    assert run(model, *tokens, "--out", tmp_path / "l.npy", "--json") == 0
    files = json.loads(capsys.readouterr().out)["files"]
    assert [file["path"] for file in files] == [str(tmp_path / f"l.{i}.npy") for i in (0, 1)]
    assert run(model, *tokens, "--out", tmp_path / "at{}.npy") == 0
    assert run(model, *tokens, "--out", tmp_path / "a", "--out", tmp_path / "b") == 0
    for names in (("l.0.npy", "l.1.npy"), ("at0.npy", "at1.npy"), ("a", "b")):
        assert_close(tmp_path / names[0], golden["p0_truth"])
        assert_close(tmp_path / names[1], golden["p2_truth"])


@pytest.mark.parametrize("form", ["[{}]", "[[{}]]", "{}", " {}\n"])
def test_tokens_from_a_file(model: Path, golden: Any, tmp_path: Path, form: str) -> None:
    file, out = tmp_path / "tokens", tmp_path / "l.npy"
    file.write_text(form.format(ids(golden, 2)))
    assert run(model, "--tokens-file", file, "--out", out) == 0
    assert_close(out, golden["p2_truth"])


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "no tokens: give --tokens 1,2,3 or --tokens-file F"),
        (["--tokens", ""], "--tokens is empty"),
        (["--tokens", "1,-2"], "--tokens: '-2' is no token id"),
        (["--tokens", "1,103"], "token id 103 is outside the vocabulary of 103"),
        (["--tokens", "1,2", "--split", "1"], "--split 1 covers 1 tokens, a sequence has 2"),
        (["--tokens", "1,2", "--split", "2,0"], "--split: every length must be at least 1"),
        (["--tokens", "1,2,3", "--context", "2"], "3 tokens do not fit a context of 2"),
        (["--tokens-file", "/none/t"], "--tokens-file: cannot read /none/t"),
        (["--tokens", "1", "--tokens", "2", "--out", "b"], "names a file twice"),
        (["--tokens", "1", "--tokens", "2", "--out", "c", "--out", "d"], "2 sequences and 3 --out"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    argv: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(model, *argv, "--out", "b") == 1
    out, err = capsys.readouterr()
    assert out == "" and message in err and len(err.splitlines()) == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("content", ["[1, 2", "[1, true]", "[[1], []]", "[1.5]", "1 two"])
def test_bad_tokens_file_is_one_line(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str
) -> None:
    (tmp_path / "t").write_text(content)
    assert run(model, "--tokens-file", tmp_path / "t", "--out", tmp_path / "l.npy") == 1
    err = capsys.readouterr().err
    assert f"--tokens-file {tmp_path}/t" in err and len(err.splitlines()) == 1


@pytest.mark.parametrize("out", [".", "none/l.npy"])
def test_unwritable_file_is_found_before_any_work(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], out: str
) -> None:
    argv = ["--tokens", "1", "--tokens", "2", "--out", str(tmp_path / "good")]
    assert run(model, *argv, "--out", tmp_path / out) == 1
    out_text, err = capsys.readouterr()
    assert out_text == "" and "--out: cannot write" in err and len(err.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_logits_that_are_not_finite_are_not_written(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken, out = tmp_path / "model", tmp_path / "l.npy"
    shutil.copytree(model, broken)
    spoil(broken / "model.safetensors")
    out.write_bytes(b"before")
    assert run(broken, "--tokens", "1,2,3", "--out", out) == 1
    err = capsys.readouterr().err
    assert "the logits from token 0 on are not finite" in err and len(err.splitlines()) == 1
    assert out.read_bytes() == b"before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["l.npy", "model"]


def spoil(path: Path) -> None:
    """Put one NaN into the last norm."""
    source = FileSource(path)
    tensors = {}
    for name, weight in open_safetensors(source).tensors.items():
        values = decode(format_of(weight), weight.data.read(), weight.shape[-1])
        tensors[name] = values.reshape(weight.shape).copy()
    source.close()
    tensors["model.norm.weight"][0] = np.nan
    write_safetensors(path, tensors)
