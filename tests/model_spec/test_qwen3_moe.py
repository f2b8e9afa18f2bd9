from __future__ import annotations

import json
from typing import Any

import pytest

from tests.helpers.tiny_model import GOLDEN
from zllm.model_spec.qwen3_moe import from_hf

CONFIG: dict[str, Any] = json.loads((GOLDEN / "qwen3_moe" / "config.json").read_text())


def test_reads_the_reference_config() -> None:
    spec = from_hf(CONFIG)
    assert spec.sparse == (False, True, True) and spec.layers == 3
    assert (spec.experts, spec.chosen_experts, spec.expert_width) == (8, 3, 16)
    assert spec.normalise and not spec.attention_bias and spec.window == 0
    assert (spec.vocabulary, spec.context, spec.head_size) == (99, 32768, 12)


def test_the_published_name_of_the_expert_count() -> None:
    published = {**CONFIG, "num_experts": 8}
    del published["num_local_experts"]
    assert from_hf(published) == from_hf(CONFIG)


@pytest.mark.parametrize(
    ("step", "dense", "sparse"),
    [
        (1, [], "1111"),
        (2, [], "0101"),
        (3, None, "0010"),
        (2, [1], "0001"),
        (None, [0, 3], "0110"),
    ],
)
def test_which_layers_have_experts(step: int | None, dense: list[int] | None, sparse: str) -> None:
    changed = {"num_hidden_layers": 4, "decoder_sparse_step": step, "mlp_only_layers": dense}
    assert from_hf({**CONFIG, **changed}).sparse == tuple(digit == "1" for digit in sparse)


def test_all_layers_slide_if_the_switch_is_on() -> None:
    assert from_hf({**CONFIG, "sliding_window": 7}).window == 0
    assert from_hf({**CONFIG, "sliding_window": 7, "use_sliding_window": True}).window == 7


@pytest.mark.parametrize(
    ("changed", "fragment"),
    [
        ({"num_experts_per_tok": 9}, "num_experts_per_tok: got 9, expected at most 8"),
        ({"num_local_experts": 0}, "num_local_experts: got 0"),
        ({"mlp_only_layers": [-1]}, "mlp_only_layers"),
        ({"mlp_only_layers": 2}, "mlp_only_layers"),
        ({"decoder_sparse_step": 0}, "decoder_sparse_step: got 0"),
        ({"moe_intermediate_size": None}, "moe_intermediate_size: missing"),
        ({"hidden_act": "relu"}, "hidden_act: got 'relu'"),
    ],
)
def test_refuses(changed: dict[str, Any], fragment: str) -> None:
    with pytest.raises(ValueError) as error:
        from_hf({**CONFIG, **changed})
    assert fragment in str(error.value)
