"""zllm bench --kl: the figures are those of the two models' own logits."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.helpers.tiny_model import altered_copy
from zllm.bin import main
from zllm.embedded import Engine

TEXT = "hi there, hello 1 2 3. What is this? It is a text of some length."


@pytest.fixture
def model(data_dir: Path) -> Path:
    return data_dir / "cases" / "chain-a"


@pytest.fixture
def other(model: Path, tmp_path: Path) -> Path:
    def shake(tensors: dict[str, NDArray[np.float32]]) -> None:
        name = next(name for name in tensors if name.endswith("embed_tokens.weight"))
        random = np.random.default_rng(0)
        noise = random.standard_normal(tensors[name].shape).astype(np.float32)
        tensors[name] = tensors[name] + np.float32(0.1) * noise

    return altered_copy(model, tmp_path / "other", tensors=shake)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


def bench(model: Path, capsys: pytest.CaptureFixture[str], *argv: str) -> Any:
    flags = ["--model", str(model), "--backend", "oracle", "--json"]
    assert main.main(["bench", *flags, *argv]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_model_and_itself(model: Path, text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = bench(model, capsys, "--kl", "oracle", "--text", str(text))
    assert found["kl_max"] == 0 and found["top1_agreement"] == 1
    assert found["perplexity"] == found["reference_perplexity"] > 1
    assert found["reference"] == str(model)


def test_packed_weights_are_close_to_f32(
    model: Path, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ("--kl", "oracle", "--text", str(text), "--resident", "packed")
    found = bench(model, capsys, *argv)
    assert found["resident"] == "packed"
    assert found["kl_max"] < 1e-6 and found["top1_agreement"] == 1


def test_figures_are_those_of_the_logits(
    model: Path, other: Path, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = bench(other, capsys, "--kl", str(model), "--text", str(text), "--context", "16")
    with (
        Engine(model=other, backend="oracle") as engine,
        Engine(model=model, backend="oracle") as reference,
    ):
        ids = engine.model.tokenizer.encode_prompt(TEXT)
        windows = [ids[at : at + 16] for at in range(0, len(ids), 16)]
        ours = [engine.logits([window])[0] for window in windows]
        theirs = [reference.logits([window])[0] for window in windows]
    q, p = (np.concatenate(rows).astype(np.float64) for rows in (ours, theirs))
    q, p = (np.exp(x) / np.exp(x).sum(axis=1, keepdims=True) for x in (q, p))
    kl = (p * np.log(p / q)).sum(axis=1)
    assert found["windows"] == len(windows) > 1 and found["tokens"] == len(ids)
    assert found["kl_mean"] == pytest.approx(kl.mean(), rel=1e-4) and kl.mean() > 1e-4
    assert found["kl_max"] == pytest.approx(kl.max(), rel=1e-4)
    agreement = (q.argmax(axis=1) == p.argmax(axis=1)).mean()
    assert found["top1_agreement"] == agreement
    at = [i for i in range(len(ids) - 1) if (i + 1) % 16]
    surprise = -np.mean([math.log(q[i, ids[i + 1]]) for i in at])
    assert found["perplexity"] == pytest.approx(math.exp(surprise), rel=1e-4)


def test_tokens_instead_of_text(
    data_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ids = tmp_path / "ids.json"
    ids.write_text("[[1, 2, 3], [4, 5, 6, 7]]")
    folder = data_dir / "golden" / "llama"
    argv = ("--kl", "oracle", "--tokens-file", str(ids))
    assert bench(folder, capsys, *argv)["tokens"] == 7
    found = bench(folder, capsys, *argv, "--text-tokens", "4")
    assert (found["tokens"], found["windows"]) == (4, 2)


def test_table(model: Path, other: Path, text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--model", str(other), "--backend", "oracle", "--kl", str(model)]
    assert main.main(["bench", *flags, "--text", str(text)]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    rows = {line[:12].strip(): line[13:] for line in out.splitlines()}
    assert list(rows) == ["model", "reference", "text", "KL", "same top 1", "perplexity"]
    assert rows["KL"].startswith("mean ") and rows["same top 1"].endswith(" %")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--kl", "oracle"], "--kl needs a text"),
        (["--kl", "oracle", "--text", "/no/such"], "--text: cannot read /no/such"),
        (["--kl", "oracle", "--text", "/dev/null"], "the text is empty"),
        (["--kl", "LLAMA", "--text", "TEXT"], "the model has 330 token ids, the reference 103"),
        (["--kl", "oracle", "--text", "TEXT", "--text-tokens", "0"], "--text-tokens must be at"),
        (["--text", "TEXT"], "--text has no meaning without --kl"),
        (["--growth", "--kl", "oracle"], "--kl has no meaning with --growth"),
    ],
)
def test_bad_flags_are_one_line(
    model: Path,
    text: Path,
    data_dir: Path,
    argv: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    paths = {"TEXT": str(text), "LLAMA": str(data_dir / "golden" / "llama")}
    flags = ["--model", str(model), "--backend", "oracle"]
    assert main.main(["bench", *flags, *(paths.get(word, word) for word in argv)]) == 1
    out, err = capsys.readouterr()
    assert out == "" and message in err and len(err.splitlines()) == 1
