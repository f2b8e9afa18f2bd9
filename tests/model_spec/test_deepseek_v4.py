from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.helpers.tiny_model import GOLDEN
from zllm.model_spec.deepseek_v4 import Compression, from_hf

CONFIG: dict[str, Any] = json.loads((GOLDEN / "deepseek_v4" / "config.json").read_text())

# The published config of the Flash model, as far as a spec depends on it.
PUBLISHED: dict[str, Any] = {
    "model_type": "deepseek_v4",
    "attention_bias": False,
    "expert_dtype": "fp4",
    "hc_eps": 1e-06,
    "hc_mult": 4,
    "hc_sinkhorn_iters": 20,
    "head_dim": 512,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "index_head_dim": 128,
    "index_n_heads": 64,
    "index_topk": 512,
    "max_position_embeddings": 1048576,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 64,
    "num_experts_per_tok": 6,
    "num_hash_layers": 3,
    "num_hidden_layers": 43,
    "num_key_value_heads": 1,
    "num_nextn_predict_layers": 1,
    "o_groups": 8,
    "o_lora_rank": 1024,
    "q_lora_rank": 1024,
    "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-06,
    "rope_scaling": {
        "beta_fast": 32,
        "beta_slow": 1,
        "factor": 16,
        "original_max_position_embeddings": 65536,
        "type": "yarn",
    },
    "rope_theta": 10000,
    "routed_scaling_factor": 1.5,
    "scoring_func": "sqrtsoftplus",
    "sliding_window": 128,
    "swiglu_limit": 10.0,
    "tie_word_embeddings": False,
    "topk_method": "noaux_tc",
    "vocab_size": 129280,
    "compress_rope_theta": 160000,
    "compress_ratios": [0, 0, *[4, 128] * 20, 4, 0],
}


def test_reads_the_reference_config() -> None:
    spec = from_hf(CONFIG)
    sparse, heavy = Compression(4, chosen=True), Compression(8, chosen=False)
    assert spec.compression == (None, sparse, heavy, sparse) and spec.layers == 4
    assert (spec.heads, spec.head_size, spec.rotated, spec.window) == (4, 16, 8, 8)
    assert (spec.query_rank, spec.output_groups, spec.output_rank) == (24, 2, 12)
    assert (spec.index.heads, spec.index.size, spec.index.top_k) == (8, 12, 5)
    assert (spec.rope.theta, spec.rope.scaling) == (10000.0, "default")
    compressed = spec.compressed_rope
    assert (compressed.theta, compressed.scaling, compressed.factor) == (40000.0, "yarn", 4.0)
    assert (compressed.original_context, compressed.attention_factor) == (64, 1.0)
    e = spec.experts
    assert (e.experts, e.chosen, e.width, e.shared_width) == (6, 2, 16, 16)
    assert e.by_token == (True, False, False, True)
    assert (e.score, e.normalise, e.scale, e.limit) == ("sqrt_softplus", True, 1.5, 1.0)
    assert (spec.hyper.streams, spec.hyper.eps, spec.hyper.iterations) == (4, 1e-6, 20)


def test_reads_the_published_config() -> None:
    spec = from_hf(PUBLISHED)
    sparse, heavy = Compression(4, chosen=True), Compression(128, chosen=False)
    assert spec.compression == (None, None, *(sparse, heavy) * 20, sparse)
    assert spec.experts.by_token == (True,) * 3 + (False,) * 40
    assert (spec.rotated, spec.rope.theta, spec.rope.scaling) == (64, 10000.0, "default")
    compressed = spec.compressed_rope
    assert (compressed.theta, compressed.factor, compressed.attention_factor) == (160000, 16, 1)
    assert compressed.original_context == 65536


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("layer_types", ["full_attention"] * 4, "layer_types: got ['full_attention', "),
        ("layer_types", ["sliding_attention"] * 3, "for each of 4 layers"),
        ("layer_types", [["sliding_attention"]] * 4, "expected one of sliding_attention, "),
        ("mlp_layer_types", ["moe", "dense", "moe", "moe"], "expected one of hash_moe, moe"),
        ("compress_rates", {"heavily_compressed_attention": 0}, "got 0, expected a positive"),
        ("num_key_value_heads", 2, "num_key_value_heads: got 2, expected 1"),
        ("attention_bias", True, "attention_bias: got true"),
        ("o_groups", 3, "o_groups: got 3, expected a divisor of 4"),
        ("partial_rotary_factor", 0.45, "partial_rotary_factor: got 0.45, so that 7 of 16"),
        ("partial_rotary_factor", 1.5, "so that 24 of 16"),
        ("index_head_dim", 4, "index_head_dim: got 4, expected at least 8"),
        ("scoring_func", "tanh", "scoring_func: got 'tanh', supported: sqrtsoftplus, "),
        ("num_experts_per_tok", 7, "num_experts_per_tok: got 7, expected at most 6"),
        ("hidden_act", "gelu", "hidden_act: got 'gelu', supported: silu"),
    ],
)
def test_refusals_name_the_field(field: str, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        from_hf({**CONFIG, field: value})


@pytest.mark.parametrize("ratios", [None, [0] * 42, [0] * 42 + [8], "0"])
def test_ratios_are_those_that_models_have(ratios: Any) -> None:
    with pytest.raises(ValueError, match=r"compress_ratios: got .* expected 0, 4 or 128"):
        from_hf({**PUBLISHED, "compress_ratios": ratios})
