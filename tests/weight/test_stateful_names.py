"""Name maps of the models with KDA layers: every spelling on disk, what is skipped and refused."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.helpers.tiny_model import CASES, GOLDEN
from zllm.errors import LoadError
from zllm.weight import glm5_next, kimi_linear, shards
from zllm.weight.checkpoint import open_checkpoint
from zllm.weight.linear_weight import LinearWeight

Json = dict[str, Any]
Stored = dict[str, LinearWeight]
BESIDE = "model.language_model."


def folder_of(name: str) -> tuple[Json, Stored]:
    path = (CASES if name == "tiny-kimi" else GOLDEN) / name
    return json.loads((path / "config.json").read_text()), shards.open_folder(path).tensors


def test_a_vision_tower_and_extra_layers_are_skipped() -> None:
    config, tensors = folder_of("glm5_next_mtp")
    assert any(".visual." in name for name in tensors)
    assert any(name.startswith(f"{BESIDE}layers.3.") for name in tensors)
    spec, found = glm5_next.from_hf(config, tensors)
    assert spec.layers == 3 and not any("layers.3" in name for name in found)
    # The layers say themselves what they are, whatever the config says.
    del config["text_config"]["num_nextn_predict_layers"]
    assert glm5_next.from_hf(config, tensors)[1].keys() == found.keys()


def test_layers_beyond_the_last_that_are_nothing_known_are_refused() -> None:
    config, tensors = folder_of("glm5_next_mtp")
    del tensors[f"{BESIDE}layers.3.eh_proj.weight"]
    with pytest.raises(LoadError, match="no use for"):
        glm5_next.from_hf(config, tensors)


@pytest.mark.parametrize("flat", [False, True], ids=["nested", "flat"])
@pytest.mark.parametrize("alone", [False, True], ids=["beside", "alone"])
def test_prefixes(flat: bool, alone: bool) -> None:
    config, tensors = folder_of("glm5_next")
    wanted = glm5_next.from_hf(config, tensors)[1]
    if alone:
        tensors = {name.replace(BESIDE, "model."): weight for name, weight in tensors.items()}
    _, found = glm5_next.from_hf(config["text_config"] if flat else config, tensors)
    assert found.keys() == wanted.keys()


def test_taps_and_rates_lose_their_axes_of_one() -> None:
    for name, module in (("kimi_linear", kimi_linear), ("glm5_next", glm5_next)):
        _, found = module.from_hf(*folder_of(name))
        assert found["layers.0.q_conv"].shape == (48, 4)
        assert found["layers.0.decay_rate"].shape == (4,)


@pytest.mark.parametrize("shape", [(4,), (1, 1, 4, 1)], ids=str)
@pytest.mark.parametrize("folder", ["kimi_linear", "glm5_next"])
def test_both_shapes_of_a_rate_are_taken(folder: str, shape: tuple[int, ...]) -> None:
    config, tensors = folder_of(folder)
    for name, weight in tensors.items():
        if name.endswith("A_log"):
            tensors[name] = replace(weight, shape=shape)
    module = {"kimi_linear": kimi_linear, "glm5_next": glm5_next}[folder]
    assert module.from_hf(config, tensors)[1]["layers.1.decay_rate"].shape == (4,)


@pytest.mark.parametrize(
    "name",
    [
        "layers.0.self_attn.A_log",
        "layers.0.hc_attn_scale",
        "layers.2.self_attn.indexer.index_kpool_compress_ape",
        "layers.3.mlp.experts.5.up_proj.weight",
        "layers.5.self_attn.kv_b_proj.weight",
        "norm.weight",
    ],
)
def test_a_missing_tensor_is_named(name: str) -> None:
    config, tensors = folder_of("glm5_next")
    del tensors[BESIDE + name]
    with pytest.raises(LoadError, match=f"'{BESIDE}{name}'.*missing"):
        glm5_next.from_hf(config, tensors)


def test_an_indexer_in_a_layer_that_shares_one_is_refused() -> None:
    config, tensors = folder_of("glm5_next")
    name = "self_attn.indexer.wk.weight"
    tensors[f"{BESIDE}layers.3.{name}"] = tensors[f"{BESIDE}layers.2.{name}"]
    with pytest.raises(LoadError, match=r"no use for: .*layers\.3\.self_attn\.indexer"):
        glm5_next.from_hf(config, tensors)


def test_kimi_names_what_is_missing_and_misshapen() -> None:
    config, tensors = folder_of("tiny-kimi")
    name = "model.layers.1.block_sparse_moe.experts.3.w2.weight"
    weight = tensors.pop(name)
    with pytest.raises(LoadError, match=f"'{name}'.*missing"):
        kimi_linear.from_hf(config, tensors)
    tensors[name] = replace(weight, shape=(16, 32))
    with pytest.raises(LoadError, match=r"\[16, 32\], the config asks for \[32, 16\]"):
        kimi_linear.from_hf(config, tensors)


def test_stop_ids_of_a_nested_config() -> None:
    checkpoint = open_checkpoint(GOLDEN / "glm5_next")
    assert checkpoint.architecture == "glm5_next" and checkpoint.generation.eos == (2,)
    checkpoint.close()
