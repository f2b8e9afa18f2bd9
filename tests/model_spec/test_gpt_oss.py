from __future__ import annotations

import json
from typing import Any

import pytest

from tests.helpers.tiny_model import GOLDEN
from zllm.model_spec.gpt_oss import from_hf

CONFIG: dict[str, Any] = json.loads((GOLDEN / "gpt_oss" / "config.json").read_text())

# The published config of the 20B model, as far as a spec depends on it.
PUBLISHED: dict[str, Any] = {
    "model_type": "gpt_oss",
    "attention_bias": True,
    "experts_per_token": 4,
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 2880,
    "initial_context_length": 4096,
    "intermediate_size": 2880,
    "max_position_embeddings": 131072,
    "num_attention_heads": 64,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 24,
    "num_key_value_heads": 8,
    "num_local_experts": 32,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "factor": 32.0,
        "original_max_position_embeddings": 4096,
        "rope_type": "yarn",
        "truncate": False,
    },
    "rope_theta": 150000,
    "sliding_window": 128,
    "swiglu_limit": 7.0,
    "tie_word_embeddings": False,
    "vocab_size": 201088,
}


def test_reads_the_reference_config() -> None:
    spec = from_hf(CONFIG)
    assert spec.windows == (8, 0, 8) and spec.layers == 3
    assert (spec.experts, spec.chosen_experts, spec.ffn_width) == (6, 2, 20)
    assert (spec.alpha, spec.limit) == (1.702, 1.2)
    assert spec.attention_bias and spec.interleaved
    assert (spec.rope.scaling, spec.rope.theta, spec.rope.truncate) == ("yarn", 15000.0, False)


def test_reads_the_published_config() -> None:
    spec = from_hf(PUBLISHED)
    assert spec.windows == (128, 0) * 12
    assert (spec.heads, spec.kv_heads, spec.head_size) == (64, 8, 64)
    assert (spec.alpha, spec.limit) == (1.702, 7.0)
    assert (spec.rope.factor, spec.rope.original_context) == (32.0, 4096)
    assert spec.rope.theta == 150000.0 and not spec.rope.truncate


@pytest.mark.parametrize(
    ("changed", "fragment"),
    [
        ({"layer_types": ["full_attention"]}, "layer_types"),
        ({"layer_types": ["full_attention", "linear", "full_attention"]}, "'linear'"),
        ({"num_experts_per_tok": 7}, "num_experts_per_tok: got 7, expected at most 6"),
        ({"swiglu_limit": -1}, "swiglu_limit: got -1"),
        ({"sliding_window": 0}, "sliding_window: got 0"),
        ({"hidden_act": "gelu"}, "hidden_act"),
    ],
)
def test_refuses(changed: dict[str, Any], fragment: str) -> None:
    with pytest.raises(ValueError) as error:
        from_hf({**CONFIG, **changed})
    assert fragment in str(error.value)
