"""Names of checkpoints with latent attention: what is taken, what is skipped, what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from zllm.errors import LoadError
from zllm.quant.weights import decode_rows
from zllm.weight import deepseek_v3, deepseek_v32, glm_moe_dsa, minicpm3
from zllm.weight.byte_source import BytesSource, TensorBytes
from zllm.weight.linear_weight import F32, LinearWeight
from zllm.weight.shards import open_folder

MODULES = {
    "deepseek_v3": deepseek_v3,
    "deepseek_v3_noqlora": deepseek_v3,
    "deepseek_v32": deepseek_v32,
    "glm_moe_dsa": glm_moe_dsa,
    "minicpm3": minicpm3,
}
Stored = dict[str, LinearWeight]


def opened(data_dir: Path, folder: str) -> tuple[dict[str, Any], Stored]:
    path = data_dir / "golden" / folder
    return json.loads((path / "config.json").read_text()), dict(open_folder(path).tensors)


def f32(array: NDArray[np.float32]) -> F32:
    raw = array.astype("<f4").tobytes()
    return F32(array.shape, TensorBytes(BytesSource(raw), 0, len(raw)))


def values(weight: LinearWeight) -> NDArray[np.float32]:
    rows = int(np.prod(weight.shape[:-1]))
    return decode_rows(weight, 0, rows).reshape(weight.shape)


@pytest.mark.parametrize(("folder", "module"), MODULES.items(), ids=MODULES)
def test_every_tensor_finds_its_place(data_dir: Path, folder: str, module: ModuleType) -> None:
    config, stored = opened(data_dir, folder)
    _, found = module.from_hf(config, stored)
    # The layer behind the last predicts further tokens.
    own = [name for name in stored if not name.startswith("model.layers.3.")]
    kept = own if folder == "deepseek_v3" else list(stored)
    assert len(found) == len(kept)
    assert len({id(weight) for weight in found.values()}) == len(kept)


def test_a_prediction_layer_is_known_by_what_it_holds(data_dir: Path) -> None:
    config, stored = opened(data_dir, "deepseek_v3")
    config.pop("num_nextn_predict_layers")
    deepseek_v3.from_hf(config, stored)
    del stored["model.layers.3.eh_proj.weight"]
    with pytest.raises(LoadError, match=r"no use for: \['model.layers.3"):
        deepseek_v3.from_hf(config, stored)


def test_a_layer_of_the_model_is_never_skipped(data_dir: Path) -> None:
    config, stored = opened(data_dir, "deepseek_v3")
    stored["model.layers.2.eh_proj.weight"] = stored["model.layers.3.eh_proj.weight"]
    with pytest.raises(LoadError, match=r"no use for: \['model.layers.2.eh_proj.weight'\]"):
        deepseek_v3.from_hf(config, stored)


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("deepseek_v3", "model.layers.1.self_attn.kv_a_layernorm.weight"),
        ("deepseek_v3", "model.layers.2.mlp.gate.e_score_correction_bias"),
        ("deepseek_v3", "model.layers.1.mlp.experts.7.up_proj.weight"),
        ("deepseek_v3_noqlora", "model.layers.0.self_attn.o_proj.bias"),
        ("deepseek_v32", "model.layers.2.self_attn.indexer.k_norm.bias"),
        ("glm_moe_dsa", "model.layers.4.self_attn.indexer.weights_proj.weight"),
        ("minicpm3", "model.layers.2.self_attn.kv_b_proj.weight"),
    ],
)
def test_a_missing_or_misshapen_tensor_is_named(data_dir: Path, folder: str, name: str) -> None:
    config, stored = opened(data_dir, folder)
    weight = stored.pop(name)
    with pytest.raises(LoadError, match=f"tensor '{name}' .* is missing"):
        MODULES[folder].from_hf(config, stored)
    longer = (weight.shape[0] + 1, *weight.shape[1:])
    stored[name] = f32(np.zeros(longer, np.float32))
    with pytest.raises(LoadError, match=f"tensor '{name}': shape"):
        MODULES[folder].from_hf(config, stored)


def test_a_shared_layer_has_no_indexer(data_dir: Path) -> None:
    config, stored = opened(data_dir, "glm_moe_dsa")
    name = "model.layers.{}.self_attn.indexer.wk.weight"
    stored[name.format(2)] = stored[name.format(1)]
    with pytest.raises(LoadError, match="no use for"):
        glm_moe_dsa.from_hf(config, stored)


def test_experts_in_one_tensor_are_the_same_experts(data_dir: Path) -> None:
    config, stored = opened(data_dir, "deepseek_v3")
    _, wanted = deepseek_v3.from_hf(config, stored)
    for layer in (1, 2):
        at = f"model.layers.{layer}.mlp.experts."
        each = [
            {part: values(stored.pop(f"{at}{e}.{part}_proj.weight")) for part in PARTS}
            for e in range(8)
        ]
        both = np.stack([np.concatenate([one["gate"], one["up"]]) for one in each])
        stored[f"{at}gate_up_proj"] = f32(both)
        stored[f"{at}down_proj"] = f32(np.stack([one["down"] for one in each]))
    _, found = deepseek_v3.from_hf(config, stored)
    assert found.keys() == wanted.keys()
    for name, weight in wanted.items():
        assert np.array_equal(values(found[name]), values(weight)), name


PARTS = ("gate", "up", "down")


def test_a_tied_head_on_disk_is_skipped(data_dir: Path) -> None:
    config, stored = opened(data_dir, "minicpm3")
    stored["lm_head.weight"] = stored["model.embed_tokens.weight"]
    _, tied = minicpm3.from_hf(config, stored)
    assert "head" not in tied
    _, untied = minicpm3.from_hf({**config, "tie_word_embeddings": False}, stored)
    assert untied["head"] is stored["lm_head.weight"]
