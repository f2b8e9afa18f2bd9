"""Names of DeepSeek V4 checkpoints, and the published mix of formats: FP8 with FP4 experts."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.helpers.files import SafetensorsTensor, write_safetensors
from tests.helpers.golden import recorded, tensors
from zllm.embedded import Engine
from zllm.errors import LoadError
from zllm.quant.float4 import PAIRS
from zllm.quant.float8 import E4M3
from zllm.weight import deepseek_v4
from zllm.weight.byte_source import BytesSource, TensorBytes
from zllm.weight.linear_weight import F32, LinearWeight
from zllm.weight.shards import open_folder

FOLDER = "deepseek_v4"
F32Array = NDArray[np.float32]
Stored = dict[str, LinearWeight]

# As published: FP8 in the attention's and the shared expert's products, FP4 in the experts'.
FP8 = re.compile(r".*\.(wq_a|wq_b|wkv|wo_a|wo_b|w2|shared_experts\.w[13])\.weight")
FP4 = re.compile(r".*\.experts\.\d+\.w[13]\.weight")
NOT_CODED = ".compressor."


def opened(data_dir: Path) -> tuple[dict[str, Any], Stored]:
    path = data_dir / "golden" / FOLDER
    return json.loads((path / "config.json").read_text()), dict(open_folder(path).tensors)


def f32(*shape: int) -> F32:
    size = 4 * int(np.prod(shape))
    return F32(shape, TensorBytes(BytesSource(bytes(size)), 0, size))


def test_every_tensor_finds_its_place(data_dir: Path) -> None:
    config, stored = opened(data_dir)
    spec, found = deepseek_v4.from_hf(config, stored)
    assert len(found) == len(stored) == len({id(weight) for weight in found.values()})
    assert found["layers.1.compress.kv"] is stored["layers.1.attn.compressor.wkv.weight"]
    assert found["layers.1.index.kv"] is stored["layers.1.attn.indexer.compressor.wkv.weight"]
    assert found["layers.2.router.correction"] is stored["layers.2.ffn.gate.bias"]
    assert found["layers.3.router.table"] is stored["layers.3.ffn.gate.tid2eid"]
    gate, up, down = (
        stored[f"layers.0.ffn.experts.5.{name}.weight"] for name in ("w1", "w3", "w2")
    )
    assert [found[f"layers.0.experts.5.{part}"] for part in ("gate", "up", "down")] == [
        gate,
        up,
        down,
    ]
    assert spec.vocabulary == 98


def test_multi_token_prediction_is_skipped(data_dir: Path) -> None:
    config, stored = opened(data_dir)
    plain = deepseek_v4.from_hf(config, stored)
    more = {**stored, "mtp.0.attn.wkv.weight": f32(16, 32), "mtp.0.hc_head_fn": f32(4, 128)}
    assert deepseek_v4.from_hf(config, more) == plain


def test_a_tied_head_may_be_absent_or_stored(data_dir: Path) -> None:
    config, stored = opened(data_dir)
    config["tie_word_embeddings"] = True
    assert "head" not in deepseek_v4.from_hf(config, stored)[1]
    del stored["head.weight"]
    assert "head" not in deepseek_v4.from_hf(config, stored)[1]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"layers.4.attn.wkv.weight": f32(16, 32)}, "no use for: ['layers.4.attn.wkv.weight']"),
        ({"layers.2.attn.indexer.wq_b.weight": f32(96, 24)}, "no use for"),  # not in HCA layers
        ({"layers.0.ffn.gate.bias": f32(6)}, "no use for"),  # not where a table chooses
        ({"layers.1.attn.compressor.ape": f32(4, 16)}, "the config asks for [4, 32]"),
        ({"layers.2.attn.wo_a.weight": f32(12, 64)}, "the config asks for [24, 32]"),
        ({"hc_head_scale": None}, "'hc_head_scale' (head_hc.scale) is missing"),
    ],
)
def test_refused(data_dir: Path, changed: dict[str, F32 | None], message: str) -> None:
    config, stored = opened(data_dir)
    for name, weight in changed.items():
        if weight is None:
            del stored[name]
        else:
            stored[name] = weight
    with pytest.raises(LoadError, match=re.escape(message)):
        deepseek_v4.from_hf(config, stored)


def coded(name: str, rng: np.random.Generator) -> tuple[dict[str, SafetensorsTensor], F32Array]:
    """Random codes and exponents of a matrix as they are published, and what they mean."""
    rows, columns = tensors(FOLDER)[name].shape
    scale_name = name.removesuffix("weight") + "scale"
    if FP4.fullmatch(name):
        codes = rng.integers(0, 256, (rows, columns // 2), np.uint8)
        exponents = rng.integers(122, 126, (rows, columns // 32), np.uint8)
        values = PAIRS[codes].reshape(rows, columns)
        kind, grid = "I8", np.repeat(exponents, 32, axis=1)
    else:
        codes = rng.integers(0, 0x3C, (rows, columns), np.uint8)  # up to 1.5
        codes |= rng.integers(0, 2, codes.shape, np.uint8) << 7
        exponents = np.full((1, 1), 125, np.uint8)  # one block of 128 × 128, cut off
        values, kind, grid = E4M3[codes], "F8_E4M3", exponents
    stored: dict[str, SafetensorsTensor] = {
        name: (kind, codes.shape, codes.tobytes()),
        scale_name: ("F8_E8M0", exponents.shape, exponents.tobytes()),
    }
    return stored, (values * np.float32(2) ** (grid.astype(np.float32) - 127)).astype(np.float32)


def test_published_formats_equal_their_decoded_values(data_dir: Path, tmp_path: Path) -> None:
    quantised: dict[str, SafetensorsTensor] = {}
    plain: dict[str, SafetensorsTensor] = {}
    kinds = {"FP8": 0, "FP4": 0}
    for name, array in tensors(FOLDER).items():
        if name.endswith("tid2eid"):
            ids = ("I64", array.shape, array.astype("<i8").tobytes())
            plain[name] = quantised[name] = ids
        elif NOT_CODED in name or not (FP8.fullmatch(name) or FP4.fullmatch(name)):
            plain[name] = quantised[name] = array
        else:
            kinds["FP4" if FP4.fullmatch(name) else "FP8"] += 1
            stored, plain[name] = coded(name, np.random.default_rng(sum(kinds.values())))
            quantised |= stored
    assert kinds == {"FP8": 4 * 5 + 2 + 4 * (6 + 3), "FP4": 4 * 6 * 2}
    config, _ = opened(data_dir)
    scheme = {"quant_method": "fp8", "fmt": "e4m3", "scale_fmt": "ue8m0"}
    says = {"quantization_config": {**scheme, "weight_block_size": [128, 128]}}
    prompt = [recorded(FOLDER)["p1_ids"].astype(int).tolist()]
    results = []
    for form, stored, resident in (
        ("plain", plain, "f32"),
        ("quantised", quantised, "f32"),
        ("quantised", quantised, "packed"),
    ):
        folder = tmp_path / form
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        text = json.dumps({**config, **(says if form == "quantised" else {})})
        (folder / "config.json").write_text(text)
        write_safetensors(folder / "model.safetensors", stored)
        with Engine(model=folder, backend="oracle", resident=resident) as engine:
            results.append(engine.logits(prompt)[0])
    assert results[0].std() > 0.1
    np.testing.assert_array_equal(results[1], results[0])
    np.testing.assert_allclose(results[2], results[0], atol=1e-4 * np.abs(results[0]).max())
