"""Which setting a product gets. Seeded fault seen to fail: the first fit, whatever its tokens."""

from __future__ import annotations

import pytest

from zllm.backend.webgpu.tuning import DEFAULT, Choice, Few, Tuning

FOUND = Few(64, 2, 8)


def test_a_setting_found_for_several_tokens_leaves_one_token_alone() -> None:
    tuned = Tuning((Choice("q4_0", 8, FOUND),))
    assert tuned.few("q4_0", 8) == tuned.few("q4_0", 2) == FOUND
    assert tuned.few("q4_0", 1) == Tuning().few("q4_0", 1) != FOUND
    assert tuned.few("q8_0", 8) == Tuning().few("q8_0", 8) != FOUND


@pytest.mark.parametrize("format", ["f16", "q4_0", "anything"])
def test_what_was_found_comes_before_the_default(format: str) -> None:
    assert Tuning((Choice(format, 1, FOUND),)).few(format, 1) == FOUND


def test_there_is_a_setting_for_every_format_and_number_of_tokens() -> None:
    assert Tuning().few("any", 1 << 20) == DEFAULT[-1].few
