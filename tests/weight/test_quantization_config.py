"""What config.json says about quantisation, and every scheme that is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from zllm.errors import LoadError
from zllm.weight.quantization_config import WeightArgs, read_quantization

Json = dict[str, Any]


def test_nothing_said() -> None:
    assert read_quantization({"model_type": "llama"}) is None


def test_nested_and_older_places() -> None:
    says = {"quant_method": "fp8", "weight_block_size": [64, 32]}
    for config in (
        {"quantization_config": says},
        {"text_config": {"quantization_config": says}},
        {"compression_config": says},
    ):
        got = read_quantization(config)
        assert got is not None and got.args("m.weight").block == (64, 32)


def test_gptq_zero_points() -> None:
    says = {"quant_method": "gptq", "bits": 4, "group_size": -1}
    for stored, offset in ((None, 1), ("gptq", 1), ("gptq_v2", 0)):
        got = read_quantization({"quantization_config": {**says, "checkpoint_format": stored}})
        assert got is not None and got.zero_offset == offset
        assert got.args("m.weight") == WeightArgs(bits=4, group_size=-1)


def test_block_as_text() -> None:
    weights = {"num_bits": 8, "strategy": "block", "block_structure": "128x64"}
    got = read_quantization({"quantization_config": groups(weights)})
    assert got is not None and got.args("any.weight").block == (128, 64)


def groups(weights: Json, **more: Any) -> Json:
    group = {"targets": ["Linear"], "weights": weights}
    config = {"quant_method": "compressed-tensors", "format": "float-quantized"}
    return {**config, "config_groups": {"g": group}, **more}


GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128}
EIGHT = {"num_bits": 8}
REFUSED: dict[str, tuple[Any, str]] = {
    "method": ({"quant_method": "hqq"}, "quant_method 'hqq' is not supported, supported: fp8"),
    "no-method": ({"bits": 4}, "quant_method None is not supported"),
    "text": ("fp8", "quantization_config: expected an object, got str"),
    "fp8-kind": ({"quant_method": "fp8", "fmt": "e5m2fnuz"}, "fmt 'e5m2fnuz'"),
    "block": ({"quant_method": "fp8", "weight_block_size": [0, 1]}, "weight_block_size: got"),
    "block-3": ({"quant_method": "fp8", "weight_block_size": [1, 1, 1]}, "weight_block_size: got"),
    "bits": ({**GPTQ, "bits": 3}, r"bits 3 is not supported, use \(2, 4, 8\)"),
    "bits-bool": ({**GPTQ, "bits": True}, "bits True is not supported"),
    "group": ({**GPTQ, "group_size": 0}, "group_size: got 0"),
    "marlin": ({**GPTQ, "checkpoint_format": "marlin"}, "checkpoint_format 'marlin'"),
    "dynamic": ({**GPTQ, "dynamic": {"+:.*": {"bits": 8}}}, "dynamic rules"),
    "awq-gemv": (
        {"quant_method": "awq", "bits": 4, "group_size": 64, "version": "gemv"},
        "AWQ version 'gemv'",
    ),
    "ct-format": (groups(EIGHT, format="marlin-24"), "format 'marlin-24' is not supported"),
    "ct-sparse": (
        groups(EIGHT, sparsity_config={"format": "sparse-24-bitmask"}),
        "sparsity format 'sparse-24-bitmask'",
    ),
    "ct-rotated": (groups(EIGHT, transform_config={"a": 1}), "transform_config"),
    "ct-strategy": (groups({**EIGHT, "strategy": "token"}), "strategy 'token'"),
    "ct-bits": (groups({"num_bits": 3}), "num_bits 3"),
    "ct-groups": ({"quant_method": "compressed-tensors", "config_groups": []}, "config_groups"),
    "modelopt": (
        {"quant_method": "modelopt", "quantization": {"quant_algo": "W4A8_AWQ"}},
        "quant_algo 'W4A8_AWQ' is not supported, supported: NVFP4",
    ),
}


@pytest.mark.parametrize(("says", "message"), REFUSED.values(), ids=REFUSED)
def test_refused_by_name(says: Any, message: str) -> None:
    with pytest.raises(LoadError, match=message):
        read_quantization({"quantization_config": says})


def test_bad_pattern() -> None:
    config = groups(EIGHT)
    config["config_groups"]["g"]["targets"] = ["re:("]
    with pytest.raises(LoadError, match=r"config_groups.g: target 're:\('"):
        read_quantization({"quantization_config": config})


def test_rules_that_only_skip_modules_are_fine() -> None:
    says = {**GPTQ, "dynamic": {"-:.*gate": {}}}
    assert read_quantization({"quantization_config": says}) is not None
