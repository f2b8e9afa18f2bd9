from __future__ import annotations

import random

import pytest

from tests.text import text_data
from zllm.text.detokenizer import StreamingDetokenizer
from zllm.text.tokenizer import Tokenizer


def stream(tokenizer: Tokenizer, ids: list[int], *, show_special: bool = False) -> list[str]:
    detokenizer = StreamingDetokenizer(tokenizer, show_special=show_special)
    return [*(detokenizer.push(id) for id in ids), detokenizer.flush()]


def test_character_over_two_tokens() -> None:
    """Case A06, `hi 1`: the pieces of U+1F600 are F0 9F and 98 80."""
    assert stream(text_data.chain_a(), [257, 312, 313, 258, 315]) == [" ok", "", "😀", "!!", "", ""]


def test_dangling_character_is_one_replacement() -> None:
    """Case A06, `hi 2`: the model stops inside a three-byte character."""
    assert stream(text_data.chain_a(), [260, 314, 315]) == [" hm", "", "", "\ufffd"]


def test_broken_character_is_replaced_as_soon_as_it_is_known() -> None:
    # E2 82 cannot be followed by "x".
    assert stream(text_data.chain_a(), [314, 120]) == ["", "\ufffdx", ""]


def test_flush_starts_a_new_sequence() -> None:
    detokenizer = StreamingDetokenizer(text_data.chain_a())
    assert [detokenizer.push(312), detokenizer.flush(), detokenizer.push(258)] == [
        "",
        "\ufffd",
        "!!",
    ]


@pytest.mark.parametrize("show_special", [False, True])
def test_joined_output_is_the_whole_decode(show_special: bool) -> None:
    rng = random.Random(6)
    tokenizer = text_data.chain_a()
    # Ids 0 to 255 are single bytes, so this cuts characters at every place.
    byte_ids = {tokenizer.token_bytes(id)[0]: id for id in range(256)}
    for text in text_data.strings(400, seed=6):
        data = bytearray(text.encode())
        if data and rng.random() < 0.5:
            data[rng.randrange(len(data))] = rng.randrange(256)
        ids = [byte_ids[byte] for byte in data]
        for _ in range(rng.randint(0, 5)):
            ids.insert(rng.randint(0, len(ids)), rng.choice((257, 312, 313, 314, 315, 319, 322)))
        joined = "".join(stream(tokenizer, ids, show_special=show_special))
        hidden = frozenset() if show_special else tokenizer.special_ids
        whole = b"".join(tokenizer.token_bytes(id) for id in ids if id not in hidden)
        assert joined == whole.decode("utf-8", errors="replace")
        assert joined == tokenizer.decode(ids, show_special=show_special)
