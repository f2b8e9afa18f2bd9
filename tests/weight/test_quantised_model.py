"""Quantised checkpoints opened as models: equal to their decoded weights, NaN codes refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers.files import SafetensorsTensor, write_safetensors
from zllm.embedded import Engine
from zllm.errors import LoadError
from zllm.quant.weights import decode_all
from zllm.weight.checkpoint import open_checkpoint
from zllm.weight.container import open_container

MODULE = "model.layers.{}.mlp.up_proj"
IDS = [5, 9, 2, 7, 11, 30, 4]


def stored(folder: Path) -> dict[str, SafetensorsTensor]:
    container = open_container(folder)
    return {name: decode_all(weight) for name, weight in container.weights.items()}


def save(folder: Path, tensors: dict[str, SafetensorsTensor], quantization: Any) -> Path:
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = quantization
    (folder / "config.json").write_text(json.dumps(config))
    write_safetensors(folder / "model.safetensors", tensors)
    return folder


def logits(folder: Path, resident: str) -> np.ndarray[Any, np.dtype[np.float32]]:
    engine = Engine(model=folder, backend="oracle", resident=resident)
    (found,) = engine.logits([IDS], None)
    engine.close()
    return found


def test_gptq_model_equals_its_decoded_weights(data_dir: Path, tmp_path: Path) -> None:
    golden = data_dir / "golden" / "llama"
    tensors = stored(golden)
    rng = np.random.default_rng(1)
    for layer in range(3):
        module = MODULE.format(layer)
        rows, columns = tensors.pop(f"{module}.weight").shape  # type: ignore[union-attr]
        words = rng.integers(0, 1 << 32, (columns // 8, rows), np.uint32).view(np.int32)
        tensors[f"{module}.qweight"] = words
        tensors[f"{module}.qzeros"] = np.full((3, rows // 8), 0x77777777, np.int32)
        tensors[f"{module}.scales"] = rng.uniform(0.01, 0.05, (3, rows)).astype(np.float16)
        tensors[f"{module}.g_idx"] = rng.permutation(np.arange(columns) // 16).astype(np.int32)
    quantized = Path(shutil.copytree(golden, tmp_path / "gptq"))
    save(quantized, tensors, {"quant_method": "gptq", "bits": 4, "group_size": 16})
    plain = Path(shutil.copytree(golden, tmp_path / "plain"))
    save(plain, stored(quantized), None)

    weight = open_checkpoint(quantized).tensors["layers.1.up"]
    assert weight.format == "gptq" and weight.shape == (96, 48)
    want = logits(plain, "f32")
    np.testing.assert_array_equal(logits(quantized, "f32"), want)
    np.testing.assert_allclose(logits(quantized, "packed"), want, atol=1e-5 * np.abs(want).max())


def test_nan_code_is_refused_at_load(data_dir: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(data_dir / "golden" / "deepseek_v3_fp8", tmp_path / "m"))
    file = folder / "model.safetensors"
    raw = bytearray(file.read_bytes())
    size = int.from_bytes(raw[:8], "little")
    name = "model.layers.1.self_attn.o_proj.weight"
    begin = json.loads(raw[8 : 8 + size])[name]["data_offsets"][0]
    raw[8 + size + begin + 3] = 0xFF
    file.unlink()
    file.write_bytes(raw)
    message = rf"tensor '{name}' \(layers.1.o\): the code of element \[0, 3\] is 0xFF, a NaN"
    with pytest.raises(LoadError, match=message):
        Engine(model=folder, backend="oracle")
