"""zllm inspect --tensor: decoded values by any name, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from zllm.bin import main


def inspect(path: Path, *argv: str) -> int:
    return main.main(["inspect", str(path), *argv])


def decoded(path: Path, name: str, out: Path) -> np.ndarray[Any, np.dtype[np.float32]]:
    assert inspect(path, "--tensor", name, "--out", str(out)) == 0
    values = np.load(out)
    assert values.dtype == np.float32
    return values  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "name",
    ["model.layers.1.mlp.up_proj.weight", "model.layers.1.mlp.up_proj", "layers.1.up"],
    ids=["file", "module", "canonical"],
)
def test_every_name_of_a_tensor(data_dir: Path, tmp_path: Path, name: str) -> None:
    folder = data_dir / "golden" / "llama"
    raw = (folder / "model.safetensors").read_bytes()
    size = int.from_bytes(raw[:8], "little")
    entry = json.loads(raw[8 : 8 + size])["model.layers.1.mlp.up_proj.weight"]
    begin, end = (8 + size + offset for offset in entry["data_offsets"])
    want = np.frombuffer(raw[begin:end], "<f4").reshape(entry["shape"])
    np.testing.assert_array_equal(decoded(folder, name, tmp_path / "x.npy"), want)


def test_file_that_is_no_model(data_dir: Path, tmp_path: Path) -> None:
    quant = data_dir / "cases" / "quant"
    values = decoded(quant / "fp8_block.safetensors", "w.weight", tmp_path / "x.npy")
    assert values[4].tolist() == [100, 100, 100, 100, 1000, -1000]
    scale = decoded(quant / "fp8_block.safetensors", "w.weight_scale_inv", tmp_path / "x.npy")
    assert scale.tolist() == [[1, 10], [100, 1000]]
    assert decoded(quant / "mxfp4.gguf", "w", tmp_path / "x.npy")[:4].tolist() == [0, 1, 2, 4]


def test_what_is_said(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = data_dir / "cases" / "quant" / "fp8_block.safetensors"
    assert inspect(file, "--tensor", "w") == 0
    assert capsys.readouterr().out == "w: scaled_e4m3 5 × 6, -1000 to 1000, mean 16.5333\n"
    assert inspect(file, "--tensor", "w", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["shape"] == [5, 6] and found["bytes"] == 46 and found["not_finite"] == 0


def test_refusals(data_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = data_dir / "golden" / "llama"
    for argv, message in (
        (["--tensor", "layers.1.upp"], "no tensor 'layers.1.upp'; did you mean layers.1.up"),
        (["--tensor", "zzz"], "no tensor 'zzz'; --tensors lists them"),
        (["--out", "x.npy"], "--out is for --tensor"),
        (["--tensor", "norm", "--out", str(tmp_path / "no" / "x.npy")], "cannot be written"),
    ):
        assert inspect(folder, *argv) != 0
        assert message in capsys.readouterr().err
