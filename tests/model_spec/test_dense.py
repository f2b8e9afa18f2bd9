"""Configs of dense decoders as published: what a missing field means, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from zllm.model_spec import gemma3, minicpm, qwen2, qwen3
from zllm.model_spec.rope import Rope

MINIMAL: dict[str, Any] = {
    "vocab_size": 100,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
}
FULL, SLIDING = "full_attention", "sliding_attention"


def golden(data_dir: Path, name: str) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((data_dir / "golden" / name / "config.json").read_text())
    return config


def test_qwen2_defaults_are_those_of_transformers() -> None:
    got = qwen2.from_hf(MINIMAL)
    assert (got.context, got.norm_eps, got.rope, got.kv_heads) == (32768, 1e-6, Rope(1e4), 8)
    assert (got.head_size, got.windows, got.tied_embeddings) == (6, (0,) * 4, False)


@pytest.mark.parametrize(
    ("fields", "windows"),
    [
        ({"use_sliding_window": False, "sliding_window": 8, "max_window_layers": 1}, (0, 0, 0, 0)),
        ({"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}, (0, 8, 8, 8)),
        ({"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 0}, (8, 8, 8, 8)),
        ({"use_sliding_window": True, "max_window_layers": 3}, (0, 0, 0, 4096)),
        ({"use_sliding_window": True, "sliding_window": 8}, (0, 0, 0, 0)),  # from layer 28 on
        ({"use_sliding_window": True, "layer_types": [SLIDING, FULL] * 2}, (4096, 0, 4096, 0)),
        ({"use_sliding_window": False, "layer_types": [SLIDING, FULL] * 2}, (0, 0, 0, 0)),
        ({"use_sliding_window": False, "sliding_window": None}, (0, 0, 0, 0)),
    ],
)
def test_switched_windows(fields: dict[str, Any], windows: tuple[int, ...]) -> None:
    for module in (qwen2, qwen3):
        assert module.from_hf({**MINIMAL, **fields}).windows == windows


def test_qwen3_heads_have_128_numbers_unless_said() -> None:
    assert qwen3.from_hf({**MINIMAL, "hidden_size": 50}).head_size == 128
    assert qwen3.from_hf({**MINIMAL, "head_dim": 16}).head_size == 16


def test_golden_configs(data_dir: Path) -> None:
    two, three = qwen2.from_hf(golden(data_dir, "qwen2")), qwen3.from_hf(golden(data_dir, "qwen3"))
    assert two.windows == (0, 12, 12) and two.rope.theta == 1e6
    assert three.rope.scaling == "yarn" and three.tied_embeddings
    cpm = minicpm.from_hf(golden(data_dir, "minicpm"))
    assert (cpm.embedding_scale, cpm.head_scale) == (3.0, 16 / 48)
    assert cpm.branch_scale == pytest.approx(1.4 / 3**0.5)
    gemma = gemma3.from_hf(golden(data_dir, "gemma3"))
    assert gemma.windows == (9, 9, 0, 9) and gemma.score_scale == 24**-0.5
    assert gemma.rope == Rope(1e6, "linear", 8.0) and gemma.local_rope == Rope(1e4)


def test_minicpm_defaults() -> None:
    got = minicpm.from_hf(MINIMAL)
    assert (got.embedding_scale, got.branch_scale, got.head_scale) == (1.0, 0.5, 1 / 48)
    assert got.tied_embeddings and not got.attention_bias


def test_gemma3_as_published_with_a_vision_tower() -> None:
    """gemma-3-4b-it: the text config names only what differs from the defaults."""
    text = {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    }
    got = gemma3.from_hf({"model_type": "gemma3", "vision_config": {}, "text_config": text})
    assert (got.width, got.layers, got.heads, got.kv_heads) == (2560, 34, 8, 4)
    assert (got.head_size, got.vocabulary, got.context) == (256, 262208, 131072)
    assert got.tied_embeddings and got.norm_offset == 1 and got.score_scale == 1 / 16
    assert got.rope == Rope(1e6, "linear", 8.0) and got.local_rope == Rope(1e4)
    assert got.windows == (1024, 1024, 1024, 1024, 1024, 0) * 5 + (1024,) * 4


@pytest.mark.parametrize("key", ["sliding_window_pattern", "_sliding_window_pattern"])
def test_gemma3_older_fields(key: str) -> None:
    older = {key: 2, "rope_theta": 7.0, "rope_local_base_freq": 5.0, "sliding_window": 16}
    got = gemma3.from_hf({**MINIMAL, **older, "final_logit_softcapping": 30.0})
    assert got.windows == (16, 0, 16, 0) and got.logit_cap == 30
    assert (got.rope, got.local_rope) == (Rope(7.0), Rope(5.0))


def test_gemma3_rope_of_one_layer_type_alone() -> None:
    got = gemma3.from_hf({**MINIMAL, "rope_parameters": {FULL: {"rope_theta": 9.0}}})
    assert (got.rope, got.local_rope) == (Rope(9.0), Rope(1e4))


@pytest.mark.parametrize(
    ("module", "fields", "message"),
    [
        (qwen2, {"hidden_act": "gelu"}, "hidden_act: got 'gelu', supported: silu"),
        (qwen2, {"layer_types": [FULL]}, "layer_types: got .*, expected one type for each of 4"),
        (qwen2, {"layer_types": [FULL, "mamba"] * 2}, "layer_types: got 'mamba', supported: full"),
        (qwen2, {"use_sliding_window": True, "sliding_window": 0}, "sliding_window: got 0"),
        (qwen3, {"max_window_layers": -1}, "max_window_layers: got -1"),
        (qwen3, {"partial_rotary_factor": 0.5}, "partial_rotary_factor: got 0.5"),
        (minicpm, {"scale_emb": 0}, "scale_emb: got 0, expected a positive number"),
        (gemma3, {"hidden_activation": "gelu"}, "hidden_activation: got 'gelu', supported: gelu_"),
        (gemma3, {"use_bidirectional_attention": True}, "use_bidirectional_attention: got true"),
        (gemma3, {"text_config": 3}, "text_config: got 3, expected an object"),
        (gemma3, {"query_pre_attn_scalar": -1}, "query_pre_attn_scalar: got -1"),
    ],
)
def test_refusals(module: Any, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        module.from_hf({**MINIMAL, **fields})
