"""zllm tools tiny: a checkpoint of every architecture that loads, runs and is seeded."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.helpers.llama_gguf import as_array
from zllm.bin import main
from zllm.bin.tiny_checkpoint import TinyModel, tensor_shapes, tiny_model, tiny_models
from zllm.weight.checkpoint import open_checkpoint
from zllm.weight.shards import open_folder


def tiny(out: Path, arch: str, *argv: str) -> Path:
    assert main.main(["tools", "tiny", "--arch", arch, "--out", str(out), *argv]) == 0
    return out


def logits(model: Path, out: Path) -> np.ndarray:
    argv = ["--model", str(model), "--backend", "oracle", "--tokens", "5,9,2,7,11,30,4,18"]
    assert main.main(["logits", *argv, "--split", "4,2,1,1", "--out", str(out)]) == 0
    found: np.ndarray = np.load(out)
    return found


@pytest.mark.parametrize("arch", tiny_models())
def test_every_architecture_loads_and_runs(
    tmp_path: Path, arch: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tiny(tmp_path / "m", arch)
    assert arch in capsys.readouterr().out
    assert {file.name for file in folder.iterdir()} == {
        "config.json",
        "generation_config.json",
        "model.safetensors",
    }
    found = logits(folder, tmp_path / "l.npy")
    assert found.shape == (8, 128) and np.isfinite(found).all()
    # Neither flat nor saturated, and each row differs from the one before it.
    assert (found.std(axis=1) > 0.02).all() and np.abs(found).max() < 100
    assert (np.abs(np.diff(found, axis=0)).max(axis=1) > 1e-3).all()


def test_the_families_have_tiny_configs() -> None:
    assert {
        *("llama", "minicpm", "qwen2", "qwen3", "gemma3", "gpt_oss", "qwen3_moe", "minicpm3"),
        *("deepseek_v3", "deepseek_v32", "glm_moe_dsa", "kimi_linear", "deepseek_v4"),
        "glm5_next",
    } <= tiny_models().keys()


@pytest.mark.parametrize("folder", ["llama_rope3", "glm5_next_b"])
def test_a_config_of_one_s_own(data_dir: Path, tmp_path: Path, folder: str) -> None:
    config = data_dir / "golden" / folder / "config.json"
    made = open_checkpoint(tiny(tmp_path / "m", str(config)))
    golden = open_checkpoint(data_dir / "golden" / folder)
    assert made.config == golden.config and made.generation.eos == golden.generation.eos
    shapes = [{n: w.shape for n, w in c.tensors.items()} for c in (made, golden)]
    assert shapes[0] == shapes[1]
    made.close()
    golden.close()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "new"}, "model_type 'new': use one of"),
        ({"hidden_size": 0}, "config of config: hidden_size: got 0"),
    ],
)
def test_a_config_that_is_refused(
    data_dir: Path,
    tmp_path: Path,
    change: dict[str, object],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = json.loads((data_dir / "golden" / "llama" / "config.json").read_text())
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**config, **change}))
    assert main.main(["tools", "tiny", "--arch", str(path), "--out", str(tmp_path / "m")]) == 1
    out, err = capsys.readouterr()
    assert out == "" and message in err and len(err.splitlines()) == 1


def test_same_seed_same_bytes(tmp_path: Path) -> None:
    first, again = tiny(tmp_path / "a", "llama"), tiny(tmp_path / "b", "llama", "--seed", "0")
    other = tiny(tmp_path / "c", "llama", "--seed", "1")
    raw = [(folder / "model.safetensors").read_bytes() for folder in (first, again, other)]
    assert raw[0] == raw[1] != raw[2]


def test_tensors_are_those_of_a_published_checkpoint(data_dir: Path) -> None:
    golden = data_dir / "golden" / "llama_rope3"
    files = open_folder(golden)
    stored = {name: weight.shape for name, weight in files.tensors.items()}
    files.close()
    model = TinyModel("llama", json.loads((golden / "config.json").read_text()))
    assert tensor_shapes(model) == stored


def test_values_keep_the_size_of_what_they_multiply(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(tiny(tmp_path / "m", "llama"))
    gate = as_array(checkpoint.tensors["layers.0.gate"])
    assert gate.std() == pytest.approx(gate.shape[1] ** -0.5, rel=0.1)
    norm = as_array(checkpoint.tensors["layers.0.attn_norm"])
    assert norm.mean() == pytest.approx(1, abs=0.1) and 0.05 < norm.std() < 0.2
    checkpoint.close()


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["tools", "tiny", "--list"]) == 0
    listed = capsys.readouterr().out.split()
    assert "llama" in listed
    assert main.main(["tools", "tiny", "--list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"architectures": listed}


def test_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tiny(tmp_path / "m", "llama", "--seed", "7", "--json")
    made = json.loads(capsys.readouterr().out)
    checkpoint = open_checkpoint(folder)
    assert made == {
        "arch": "llama",
        "path": str(folder),
        "parameters": checkpoint.size_bytes // 4,
        "seed": 7,
    }
    assert checkpoint.config.context >= 8192
    assert checkpoint.generation.eos == (tiny_model("llama").config["eos_token_id"],)
    checkpoint.close()


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "give --arch A and --out DIR"),
        (["--arch", "llama"], "give --arch A and --out DIR"),
        (["--arch", "lama", "--out", "x"], "unknown architecture 'lama': use one of"),
        (["--arch", "llama", "--out", "/dev/null/x"], "--out: cannot write /dev/null/x"),
        (["--arch", "llama", "--out", "x", "--seed", "-1"], "--seed must be at least 0, got -1"),
    ],
)
def test_bad_flags_are_one_line(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["tools", "tiny", *argv]) == 1
    out, err = capsys.readouterr()
    assert out == "" and message in err and len(err.splitlines()) == 1


def test_group_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["tools"]) == 2
    assert "usage: zllm tools" in (err := capsys.readouterr().err) and "tiny" in err
    with pytest.raises(SystemExit) as stop:
        main.main(["tools", "tiney"])
    assert stop.value.code == 2
    assert "zllm tools: error" in capsys.readouterr().err
