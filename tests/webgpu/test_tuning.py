"""Which setting a product gets. Seeded fault seen to fail: the first fit, whatever its tokens."""

from __future__ import annotations

import pytest

from zllm.backend.webgpu.tuning import DEFAULT, Choice, Few, Tuning

FOUND = Few(64, 2, 8)


def few(tuning: Tuning, format: str, tokens: int) -> Few:
    return tuning.few(format, tokens, pairs=True)


def test_a_setting_found_for_several_tokens_leaves_one_token_alone() -> None:
    tuned = Tuning((Choice("q4_0", 8, FOUND),))
    assert few(tuned, "q4_0", 8) == few(tuned, "q4_0", 2) == FOUND
    assert few(tuned, "q4_0", 1) == few(Tuning(), "q4_0", 1) != FOUND
    assert few(tuned, "q8_0", 8) == few(Tuning(), "q8_0", 8) != FOUND


@pytest.mark.parametrize("format", ["f16", "q4_0", "anything"])
def test_what_was_found_comes_before_the_default(format: str) -> None:
    assert few(Tuning((Choice(format, 1, FOUND),)), format, 1) == FOUND


def test_there_is_a_setting_for_every_format_and_number_of_tokens() -> None:
    assert few(Tuning(), "any", 1 << 20) == DEFAULT[-1].few


def test_pairs_are_passed_over_where_they_cannot_be() -> None:
    """Found ones and those of the default."""
    pairs = Few(64, 2, 16, "pairs")
    tuned = Tuning((Choice("", 8, pairs),))
    assert few(tuned, "f16", 8) == pairs
    for tuning, format in ((tuned, "f16"), (Tuning(), "q4_0")):
        assert tuning.few(format, 8, pairs=False) == DEFAULT[-1].few
    assert few(Tuning(), "q4_0", 8).kernel == "pairs"
