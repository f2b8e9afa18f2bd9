"""Cases A04 and A05: FP8 blocks at the edge of a matrix, MXFP4 in both containers."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.helpers.files import write_safetensors
from zllm.errors import LoadError
from zllm.quant.weights import decode_all
from zllm.weight.container import open_container

PAIRS = [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6]
LOW = [0, 1, 2, 4, 0, -1, -2, -4]
HIGH = [0.5, 1.5, 3, 6, -0.5, -1.5, -3, -6]


def test_a04_declared_blocks_with_partial_ones(data_dir: Path) -> None:
    with_config = open_container(data_dir / "cases" / "quant" / "fp8_block.safetensors")
    values = decode_all(with_config.weights["w.weight"])
    assert values[:4].tolist() == [[1, 1, 1, 1, 10, 10]] * 4
    assert values[4].tolist() == [100, 100, 100, 100, 1000, -1000]
    with_config.close()


def test_a04_without_the_declared_size_nothing_is_guessed(data_dir: Path, tmp_path: Path) -> None:
    path = tmp_path / "fp8_block.safetensors"
    shutil.copy(data_dir / "cases" / "quant" / "fp8_block.safetensors", path)
    container = open_container(path)
    assert "the config declares none" in str(container.problem)
    assert container.weights is container.tensors
    container.close()


@pytest.mark.parametrize("file", ["mxfp4.safetensors", "mxfp4.gguf"])
def test_a05_scale_bytes_and_nibbles(data_dir: Path, file: str) -> None:
    container = open_container(data_dir / "cases" / "quant" / file)
    blocks = decode_all(container.weights["w"]).reshape(4, 32)
    first = PAIRS * 2 if file.endswith("safetensors") else LOW * 2 + HIGH * 2
    assert blocks[0].tolist() == first
    for block, exponent in ((1, -1), (2, -127), (3, 123)):
        want = np.ldexp(np.array(first, np.float64), exponent).astype(np.float32)
        np.testing.assert_array_equal(blocks[block], want)
    assert blocks[2][1] > 0 and blocks[2][1] < np.finfo(np.float32).tiny  # not flushed
    container.close()


def test_config_of_the_folder_and_modelopt_file(tmp_path: Path) -> None:
    codes = ("U8", (2, 8), bytes([0x22] * 16))
    scale = ("F8_E4M3", (2, 1), bytes([0x38, 0x40]))
    factor = np.full((), 3, np.float32)
    tensors = {"m.weight": codes, "m.weight_scale": scale, "m.weight_scale_2": factor}
    write_safetensors(tmp_path / "model.safetensors", tensors)
    (tmp_path / "config.json").write_text("{}")
    says = '{"quantization": {"quant_algo": "NVFP4", "group_size": 16}}'
    (tmp_path / "hf_quant_config.json").write_text(says)
    for path in (tmp_path, tmp_path / "model.safetensors"):
        values = decode_all(open_container(path).weights["m.weight"])
        assert values.tolist() == [[3.0] * 16, [6.0] * 16]
    (tmp_path / "config.json").write_text('{"quantization_config": {"quant_method": "quark"}}')
    problem = open_container(tmp_path).problem
    assert "config.json: quantization_config: quant_method 'quark'" in str(problem)


def test_what_is_no_container(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(LoadError, match=r"notes.txt: neither GGUF nor \.safetensors"):
        open_container(tmp_path / "notes.txt")
