from __future__ import annotations

from typing import Any

import pytest

from zllm.weight import generation

TEXT = {"eos_token_id": [2, 3], "bos_token_id": 1, "temperature": 0.3, "top_k": 50}


@pytest.mark.parametrize(
    ("config", "file", "eos", "bos"),
    [
        ({"eos_token_id": 5}, None, (5,), None),
        ({"eos_token_id": 5}, {"eos_token_id": [6, 7]}, (6, 7), None),
        ({"eos_token_id": 5}, {"eos_token_id": None}, (5,), None),
        ({"text_config": TEXT}, None, (2, 3), 1),
        ({"text_config": TEXT, "eos_token_id": 5}, None, (5,), 1),
        ({"text_config": TEXT, "eos_token_id": None}, None, (2, 3), 1),
        ({"text_config": TEXT}, {"eos_token_id": 9}, (9,), 1),
        ({"text_config": None}, None, (), None),
    ],
)
def test_where_the_ids_come_from(
    config: dict[str, Any], file: dict[str, Any] | None, eos: tuple[int, ...], bos: int | None
) -> None:
    found = generation.from_hf(config, file)
    assert (found.eos, found.bos) == (eos, bos)


def test_a_nested_config_suggests_no_sampling() -> None:
    found = generation.from_hf({"text_config": TEXT}, {"top_p": 0.9})
    assert (found.temperature, found.top_k, found.top_p) == (None, None, 0.9)
