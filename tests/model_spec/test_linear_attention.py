"""Configs of models with KDA layers: both spellings, lists that count from 1 or 0, refusals."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.helpers.tiny_model import CASES, GOLDEN
from zllm.model_spec import glm5_next, kimi_linear, linear_attention
from zllm.model_spec.glm5_next import Pools
from zllm.model_spec.linear_attention import LinearAttention, linear_layers

Json = dict[str, Any]


def config_of(folder: str, name: str = "config.json") -> Json:
    config: Json = json.loads((GOLDEN / folder / name).read_text())
    return config


TINY: Json = json.loads((CASES / "tiny-kimi" / "config.json").read_text())


def test_the_published_spelling_says_the_same() -> None:
    published = config_of("glm5_next", "config.published_style.json")
    assert "linear_num_heads" not in published["text_config"]
    assert glm5_next.from_hf(published) == glm5_next.from_hf(config_of("glm5_next"))


def test_published_lists_of_layers_count_from_0_there() -> None:
    published = config_of("glm5_next", "config.published_style.json")
    del published["text_config"]["layer_types"]
    assert glm5_next.from_hf(published) == glm5_next.from_hf(config_of("glm5_next"))


def test_a_flat_config_says_the_same() -> None:
    config = config_of("glm5_next")
    flat = {**config["text_config"], "model_type": "glm5_next_text"}
    assert glm5_next.from_hf(flat) == glm5_next.from_hf(config)


def test_switches_of_the_other_folder() -> None:
    spec = glm5_next.from_hf(config_of("glm5_next_b"))
    assert spec.linear == LinearAttention(4, 12, 3, 0.0)
    assert spec.pools == Pools(3, True) and spec.attention_bias
    assert spec.chooses == (True, False, False, True, False)
    assert spec.is_linear == (False, True, True, False, False)
    assert (spec.experts.groups, spec.experts.shared_width) == (2, 32)
    assert not glm5_next.from_hf(config_of("glm5_next_notail")).pools.tail


def test_kimi_lists_count_from_1() -> None:
    spec = kimi_linear.from_hf(TINY)
    assert spec.is_linear == (True, True, False) and spec.sparse == (False, True, True)
    assert spec.linear == LinearAttention(2, 8, 4) and spec.context == 256
    assert (spec.latent.query_rank, spec.latent.rotated) == (0, 4)


def test_kimi_experts_every_other_layer() -> None:
    spec = kimi_linear.from_hf({**TINY, "moe_layer_freq": 2})
    assert spec.sparse == (False, False, True)


@pytest.mark.parametrize(
    ("linear", "full", "found"),
    [
        ([1, 2], [3], (True, True, False)),
        ([0, 1], [2], (True, True, False)),
        ([2, 3], [1], (False, True, True)),
        ([1, 2, 4], [3, 5], (True, True, False)),  # more follow, for other uses
    ],
)
def test_lists_of_layers(linear: list[int], full: list[int], found: tuple[bool, ...]) -> None:
    section = {"kda_layers": linear, "full_attn_layers": full}
    assert linear_layers({"linear_attn_config": section}, 3, ()) == found


@pytest.mark.parametrize(
    ("linear", "full"),
    [([1, 2], [2, 3]), ([1], [3]), ([], []), ([2, 3], [4]), (None, [1]), ("", 3)],
)
def test_lists_that_do_not_name_each_layer_once(linear: Any, full: Any) -> None:
    section = {"kda_layers": linear, "full_attn_layers": full}
    with pytest.raises(ValueError, match=r"linear_attn_config.*kda_layers"):
        linear_layers({"linear_attn_config": section}, 3, ())


def test_a_gate_that_is_not_safe_has_no_bound() -> None:
    section = {"num_heads": 2, "head_dim": 8, "short_conv_kernel_size": 4, "gate_lower_bound": -5.0}
    bounded = linear_attention.from_hf({"linear_attn_config": section})
    assert bounded.lower_bound == -5.0
    unsafe = linear_attention.from_hf({"linear_attn_config": {**section, "safe_gate": False}})
    assert unsafe.lower_bound == 0.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"linear_lower_bound": 5.0}, "linear_lower_bound: got 5.0"),
        ({"linear_lower_bound": "low"}, "linear_lower_bound: got 'low'"),
        ({"linear_conv_kernel_dim": 1}, "linear_conv_kernel_dim: got 1"),
        ({"linear_head_dim": None}, "linear_head_dim: missing"),
        ({"layer_types": ["linear_attention"] * 5}, "layer_types: .* 6 times"),
        ({"layer_types": ["mamba"] * 6}, "layer_types: got .*mamba"),
        (
            {"indexer_types": ["full", "full", "shared", "full", "full", "full"]},
            "layer 2 is shared",
        ),
        ({"indexer_types": ["full"]}, "indexer_types"),
        ({"index_kpool": 17}, "index_kpool: got 17, expected at most index_topk 16"),
        ({"index_kpool": None}, "index_kpool: missing"),
        ({"hc_mult": 0}, "hc_mult: got 0"),
        ({"qk_rope_head_dim": 8}, "qk_rope_head_dim: got 8, expected 0"),
        ({"q_lora_rank": None}, "q_lora_rank"),
        ({"swiglu_limit": -1.0}, "swiglu_limit: got -1.0"),
        ({"topk_group": 2}, "topk_group: got 2"),
        ({"hidden_act": "gelu"}, "hidden_act: got 'gelu'"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else None,
)
def test_what_does_not_fit_is_named(changes: Json, message: str) -> None:
    config = config_of("glm5_next")
    config["text_config"] |= changes
    with pytest.raises(ValueError, match=message):
        glm5_next.from_hf(config)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mla_use_nope": False}, "mla_use_nope"),
        ({"num_experts_per_token": 5}, "5, expected at most 4"),
        ({"moe_router_activation_func": "softmax"}, "moe_router_activation_func"),
        ({"num_experts": None}, "num_experts: missing"),
        ({"linear_attn_config": {}}, "missing"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else None,
)
def test_what_does_not_fit_kimi_is_named(changes: Json, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kimi_linear.from_hf({**TINY, **changes})


def test_a_first_kda_layer_may_be_called_shared() -> None:
    """It has no indexer either way."""
    config = config_of("glm5_next")
    config["text_config"]["indexer_types"][0] = "shared"
    assert glm5_next.from_hf(config) == glm5_next.from_hf(config_of("glm5_next"))
