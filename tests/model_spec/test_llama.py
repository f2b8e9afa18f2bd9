"""LlamaConfig out of config.json: rope spellings, defaults, refusals that name the field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from zllm.model_spec.llama import LlamaConfig, from_hf
from zllm.model_spec.rope import Rope

MINIMAL: dict[str, Any] = {
    "vocab_size": 100,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
}
LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def test_golden_configs(data_dir: Path) -> None:
    plain, rope3 = (
        from_hf(json.loads((data_dir / "golden" / name / "config.json").read_text()))
        for name in ("llama", "llama_rope3")
    )
    assert plain == LlamaConfig(
        vocabulary=103,
        width=48,
        ffn_width=96,
        layers=3,
        heads=6,
        kv_heads=2,
        head_size=8,
        context=2048,
        norm_eps=1e-4,
        rope=Rope(100000.0),
        tied_embeddings=True,
    )
    assert rope3.rope == Rope(500.0, "llama3", 8.0, 1.0, 4.0, 64)
    assert rope3.attention_bias and rope3.mlp_bias and not rope3.tied_embeddings


def test_defaults_are_those_of_transformers() -> None:
    got = from_hf({**MINIMAL, "head_dim": None})
    assert got == LlamaConfig(100, 48, 96, 2, 6, 6, 8, 2048, 1e-6, Rope(10000.0))


@pytest.mark.parametrize(
    ("fields", "rope"),
    [
        ({"rope_theta": 5e5}, Rope(5e5)),
        ({"rope_theta": 5e5, "rope_scaling": None}, Rope(5e5)),
        ({"rope_parameters": {"rope_theta": 7.0}}, Rope(7.0)),
        ({"rope_scaling": {"type": "linear", "factor": 2}}, Rope(1e4, "linear", 2.0)),
        (
            {"rope_theta": 9.0, "rope_scaling": {"rope_type": "llama3", **LLAMA3}},
            Rope(9.0, "llama3", 8.0, 1.0, 4.0, 64),
        ),
        (
            {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 9.0}},
            Rope(9.0, "linear", 4.0),
        ),
    ],
)
def test_rope_spellings(fields: dict[str, Any], rope: Rope) -> None:
    assert from_hf({**MINIMAL, **fields}).rope == rope


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"vocab_size": None}, "vocab_size: missing"),
        ({"hidden_size": "48"}, "hidden_size: got '48', expected a positive integer"),
        ({"num_hidden_layers": True}, "num_hidden_layers: got True"),
        ({"num_hidden_layers": 0}, "num_hidden_layers: got 0"),
        ({"intermediate_size": 96.0}, "intermediate_size: got 96.0"),
        ({"num_key_value_heads": 4}, "num_key_value_heads: got 4, expected a divisor of 6"),
        ({"hidden_size": 50}, "head_dim: missing, and width 50 is no multiple of 6"),
        ({"head_dim": 7}, "head_dim: got 7, expected an even"),
        ({"rms_norm_eps": 0}, "rms_norm_eps: got 0"),
        ({"rms_norm_eps": 10**400}, "rms_norm_eps: got 1000"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps: got nan"),
        ({"attention_bias": "yes"}, "attention_bias: got 'yes'"),
        ({"hidden_act": "relu"}, "hidden_act: got 'relu', supported: silu"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"rope_theta": -1}, "rope_theta: got -1"),
        ({"rope_scaling": {"type": "su"}}, "type: got 'su', supported: default, linear"),
        ({"rope_parameters": {"rope_type": "longrope"}}, "short_factor: got None"),
        ({"rope_parameters": ["llama3"]}, "rope_parameters: got"),
        ({"rope_scaling": {"type": "linear"}}, "factor: missing"),
        ({"rope_scaling": {"type": "llama3", **LLAMA3, "factor": None}}, "factor: missing"),
        ({"rope_scaling": {"type": "llama3", **LLAMA3, "low_freq_factor": 4}}, "high_freq_factor"),
    ],
)
def test_refusals(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_hf({**MINIMAL, **fields})
