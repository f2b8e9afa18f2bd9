"""Rope out of config.json: both spellings, every scaling, refusals that name the field."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from zllm.model_spec.rope import Rope, from_hf, require_whole_heads, yarn_scale

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 48}
LONG = {"short_factor": [1.0, 2], "long_factor": [3.0, 4.0], "type": "longrope"}


@pytest.mark.parametrize("key", ["rope_parameters", "rope_scaling"])
def test_yarn(key: str) -> None:
    rope = from_hf({key: YARN, "rope_theta": 5e5}, 192)
    assert rope == Rope(5e5, "yarn", 4.0, original_context=48, attention_factor=yarn_scale(4, 1))
    assert rope.attention_factor == pytest.approx(0.1 * math.log(4) + 1)


def test_yarn_options() -> None:
    given = {"attention_factor": 1.5, "beta_fast": 16, "beta_slow": 2, "truncate": False}
    rope = from_hf({"rope_parameters": {**YARN, **given, "rope_theta": 9.0}}, 192)
    assert rope == Rope(
        9.0,
        "yarn",
        4.0,
        original_context=48,
        attention_factor=1.5,
        beta_fast=16.0,
        beta_slow=2.0,
        truncate=False,
    )


@pytest.mark.parametrize(
    ("mscale", "all_dim", "cos_sin", "score"),
    [
        (1.0, 0.7, 1.2079 / 1.1456, 1.1456**2),
        (1.0, 1.0, 1.0, 1.2079**2),
        (0.7, 0.0, 1.2079, 1.0),  # without mscale_all_dim the other means nothing
        (None, 0.7, 1.2079, 1.1456**2),
    ],
)
def test_yarn_mscale(mscale: float | None, all_dim: float, cos_sin: float, score: float) -> None:
    """By hand: 0.1·ln 8 = 0.20794, 0.1·0.7·ln 8 = 0.14556."""
    given = {**YARN, "factor": 8.0, "mscale": mscale, "mscale_all_dim": all_dim}
    rope = from_hf({"rope_scaling": given}, 512)
    assert rope.attention_factor == pytest.approx(cos_sin, rel=1e-4)
    assert rope.score_factor == pytest.approx(score, rel=1e-4)


def test_yarn_without_original_context_takes_the_config_s() -> None:
    bare = {"rope_type": "yarn", "factor": 4.0}
    assert from_hf({"rope_scaling": bare}, 192).original_context == 192
    config = {"rope_scaling": {"rope_type": "yarn"}, "original_max_position_embeddings": 48}
    rope = from_hf(config, 192)
    assert (rope.original_context, rope.factor) == (48, 4.0)
    assert from_hf({"rope_scaling": bare}, 192, theta=1e6).theta == 1e6


def test_longrope() -> None:
    rope = from_hf({"rope_scaling": {**LONG, "original_max_position_embeddings": 64}}, 256)
    assert (rope.scaling, rope.original_context) == ("longrope", 64)
    assert rope.divisors == (1.0, 2.0) and rope.long_divisors == (3.0, 4.0)
    assert rope.attention_factor == pytest.approx(math.sqrt(1 + 1 / 3))  # ln 4 / ln 64
    same = from_hf({"rope_scaling": {**LONG, "original_max_position_embeddings": 256}}, 256)
    assert same.attention_factor == 1.0


def test_dynamic_is_plain_up_to_the_context() -> None:
    assert from_hf({"rope_scaling": {"type": "dynamic", "factor": 4.0}}, 4096) == Rope(1e4)


def test_golden_configs(data_dir: Path) -> None:
    config = json.loads((data_dir / "golden" / "qwen3" / "config.json").read_text())
    assert from_hf(config, 192).scaling == "yarn"


def test_whole_heads() -> None:
    require_whole_heads({"partial_rotary_factor": 1, "rope_parameters": {"rope_theta": 5.0}})
    parts = {"partial_rotary_factor": 0.5}
    for config in (parts, {"rope_parameters": parts}):
        with pytest.raises(ValueError, match=r"partial_rotary_factor: got 0\.5.*expected 1\.0"):
            require_whole_heads(config)


@pytest.mark.parametrize(
    ("scaling", "message"),
    [
        ({"type": "ntk"}, "type: got 'ntk', supported: default, linear, dynamic, llama3, yarn"),
        ({"type": "yarn"}, "factor: missing"),
        ({**YARN, "factor": -4}, "factor: got -4"),
        ({**YARN, "truncate": 1}, "truncate: got 1, expected true or false"),
        ({**YARN, "mscale": "1"}, "mscale: got '1'"),
        ({**LONG, "short_factor": None}, "short_factor: got None, expected a number for each"),
        ({**LONG, "long_factor": [1.0]}, "long_factor: got 1 numbers, expected 2 as in short"),
        ({**LONG, "long_factor": [1.0, 0]}, "long_factor: got 0, expected a positive number"),
    ],
)
def test_refusals(scaling: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_hf({"rope_scaling": scaling}, 192)
