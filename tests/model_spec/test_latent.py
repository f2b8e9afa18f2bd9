"""Configs of models with latent attention: golden files, refusals that name the field."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from zllm.model_spec import deepseek_v3, deepseek_v32, glm_moe_dsa, minicpm3
from zllm.model_spec.deepseek_v3 import DeepseekV3Config
from zllm.model_spec.grouped_experts import GroupedExperts
from zllm.model_spec.latent import Index, Latent
from zllm.model_spec.rope import Rope

Json = dict[str, Any]


@pytest.fixture
def golden(data_dir: Path) -> Callable[[str], Json]:
    def read(folder: str) -> Json:
        config: Json = json.loads((data_dir / "golden" / folder / "config.json").read_text())
        return config

    return read


def test_deepseek_v3(golden: Callable[[str], Json]) -> None:
    plain = deepseek_v3.from_hf(golden("deepseek_v3_noqlora"))
    assert plain == DeepseekV3Config(
        vocabulary=97,
        width=36,
        ffn_width=56,
        layers=2,
        heads=4,
        context=512,
        norm_eps=1e-3,
        latent=Latent(query_rank=0, rank=20, nope=12, rotated=8, value=10),
        rope=Rope(10000.0),
        rope_interleaved=False,
        experts=GroupedExperts(8, 3, 16, 32, 4, 2, normalise=False, scale=2.5),
        sparse=(False, True),
        attention_bias=True,
        tied_embeddings=False,
    )
    yarn = deepseek_v3.from_hf(golden("deepseek_v3"))
    assert yarn.rope_interleaved and yarn.experts.normalise and yarn.latent.query_rank == 28
    assert yarn.sparse == (False, True, True)
    assert yarn.rope.score_factor == pytest.approx((0.07 * 2.0794415 + 1) ** 2)


def test_deepseek_v32_and_glm(golden: Callable[[str], Json]) -> None:
    sparse = deepseek_v32.from_hf(golden("deepseek_v32"))
    assert sparse.index == Index(heads=8, size=16, top_k=16)
    assert (sparse.vocabulary, sparse.context) == (102, 512)
    shared = glm_moe_dsa.from_hf(golden("glm_moe_dsa"))
    assert shared.chooses == (True, True, False, False, True) and shared.index_interleaved
    assert shared.base.sparse == (False, False, True, True, True)
    assert shared.base.rope == Rope(100000.0)


@pytest.mark.parametrize(
    ("fields", "chooses"),
    [
        ({}, "FFFFF"),
        ({"index_topk_pattern": "FSSFS"}, "FSSFS"),
        ({"index_topk_pattern": "FSSFS", "indexer_types": ["full"] * 5}, "FFFFF"),
        ({"index_topk_freq": 2}, "FFSFS"),  # max(i - 1, 0) % 2 == 0
        ({"index_topk_freq": 3, "index_skip_topk_offset": 1}, "FSSFS"),
        ({"index_topk_freq": 2, "index_skip_topk_offset": 4}, "FFFFS"),
    ],
)
def test_which_layers_choose(golden: Callable[[str], Json], fields: Json, chooses: str) -> None:
    config = {**golden("glm_moe_dsa"), "indexer_types": None, **fields}
    found = glm_moe_dsa.from_hf(config).chooses
    assert "".join("F" if one else "S" for one in found) == chooses


def test_minicpm3(golden: Callable[[str], Json]) -> None:
    config = golden("minicpm3")
    found = minicpm3.from_hf(config)
    assert found.embedding_scale == 3
    assert found.branch_scale == pytest.approx(1.4 / 3**0.5)
    assert found.logit_scale == pytest.approx(16 / 48)
    assert found.latent == Latent(28, 20, 12, 8, 12) and found.tied_embeddings
    assert len(found.rope.divisors) == len(found.rope.long_divisors) == 4
    neutral = minicpm3.from_hf({**config, "scale_depth": None, "dim_model_base": None})
    assert neutral.branch_scale == pytest.approx(1) and neutral.logit_scale == 1
    derived = minicpm3.from_hf({**config, "v_head_dim": None})
    assert derived.latent.value == 48 // 4


REFUSED: list[tuple[str, Json, str]] = [
    ("deepseek_v3", {"kv_lora_rank": None}, "kv_lora_rank: missing"),
    ("deepseek_v3", {"qk_rope_head_dim": 7}, "qk_rope_head_dim: got 7"),
    ("deepseek_v3", {"qk_rope_head_dim": -2}, "qk_rope_head_dim: got -2"),
    ("deepseek_v3", {"q_lora_rank": 0}, "q_lora_rank: got 0"),
    ("deepseek_v3", {"scoring_func": "softmax"}, "scoring_func: got 'softmax'"),
    ("deepseek_v3", {"topk_method": "greedy"}, "topk_method: got 'greedy'"),
    ("deepseek_v3", {"moe_layer_freq": 2}, "moe_layer_freq: got 2, expected 1"),
    ("deepseek_v3", {"n_group": 3}, "n_group: got 3, expected a divisor of 8"),
    ("deepseek_v3", {"topk_group": 5}, "topk_group: got 5, expected at most n_group 4"),
    ("deepseek_v3", {"num_experts_per_tok": 5}, "num_experts_per_tok: got 5, expected at most 4"),
    ("deepseek_v3", {"mlp_layer_types": ["dense"]}, "mlp_layer_types"),
    ("deepseek_v3", {"mlp_layer_types": ["dense", "moe", "dense"]}, "mlp_layer_types"),
    ("deepseek_v3", {"hidden_act": "gelu"}, "hidden_act: got 'gelu'"),
    ("deepseek_v3", {"rope_interleave": 1}, "rope_interleave: got 1"),
    ("deepseek_v32", {"index_topk": None}, "index_topk: missing"),
    ("deepseek_v32", {"index_head_dim": 4}, "index_head_dim: got 4, expected at least 8"),
    ("deepseek_v32", {"q_lora_rank": None}, "q_lora_rank: missing"),
    ("glm_moe_dsa", {"q_lora_rank": None}, "q_lora_rank: missing"),
    ("glm_moe_dsa", {"indexer_types": ["full"] * 4}, "indexer_types"),
    ("glm_moe_dsa", {"indexer_types": ["full", "half", *["full"] * 3]}, "indexer_types"),
    ("glm_moe_dsa", {"indexer_types": ["shared", *["full"] * 4]}, "layer 0"),
    ("glm_moe_dsa", {"indexer_types": None, "index_topk_pattern": 5}, "index_topk_pattern: got 5"),
    ("minicpm3", {"mlp_bias": True}, "mlp_bias"),
    ("minicpm3", {"scale_emb": None}, "scale_emb: missing"),
    ("minicpm3", {"scale_depth": 0}, "scale_depth: got 0"),
]


@pytest.mark.parametrize(("folder", "fields", "message"), REFUSED)
def test_refusals_name_the_field(
    golden: Callable[[str], Json], folder: str, fields: Json, message: str
) -> None:
    read = {
        "deepseek_v3": deepseek_v3.from_hf,
        "deepseek_v32": deepseek_v32.from_hf,
        "glm_moe_dsa": glm_moe_dsa.from_hf,
        "minicpm3": minicpm3.from_hf,
    }[folder]
    with pytest.raises(ValueError, match=message):
        read({**golden(folder), **fields})


def test_fields_without_a_neutral_value_must_be_there(golden: Callable[[str], Json]) -> None:
    config = golden("minicpm3")
    for key in ("scale_emb", "scale_depth", "dim_model_base"):
        with pytest.raises(ValueError, match=f"{key}: missing"):
            minicpm3.from_hf({name: value for name, value in config.items() if name != key})
