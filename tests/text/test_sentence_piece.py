"""Tokenizers in GGUF's score form, against llama.cpp 0.3.36's ids.

`sentence_piece.json.gz` holds Gemma 3's own vocabulary and three small trained ones, each reduced
to the tokens that lie inside its texts, with ids renumbered.
"""

from __future__ import annotations

import gzip
import json
import time
from typing import Any

import pytest

from tests.text import text_data
from tests.text.test_tokenizer import LIMIT_S, LONG_TEXTS
from zllm.text.detokenizer import StreamingDetokenizer
from zllm.text.errors import TokenizerError
from zllm.text.tokenizer import Tokenizer

GOLDEN = json.loads(gzip.decompress((text_data.DATA / "sentence_piece.json.gz").read_bytes()))


@pytest.mark.parametrize("name", GOLDEN)
def test_ids_are_those_of_llama_cpp(name: str) -> None:
    tokenizer = Tokenizer.from_gguf(GOLDEN[name]["metadata"])
    for text, special, plain in GOLDEN[name]["items"]:
        assert tokenizer.encode(text, special=True) == special, text
        assert tokenizer.encode(text, special=False) == plain, text


@pytest.mark.parametrize("name", ["gemma3", "llama"])
def test_decoding_gives_the_text_back(name: str) -> None:
    """Byte tokens and the space prefix leave no trace."""
    tokenizer = Tokenizer.from_gguf(GOLDEN[name]["metadata"])
    for text, _, ids in GOLDEN[name]["items"]:
        # SentencePiece cannot tell its own space from this character.
        assert tokenizer.decode(ids) == text.replace("▁", " ")


def test_text_that_continues_keeps_its_space() -> None:
    tokenizer = Tokenizer.from_gguf(GOLDEN["llama"]["metadata"])
    ids = tokenizer.encode("the", special=False)
    alone, continued = (
        StreamingDetokenizer(tokenizer, continues=continues) for continues in (False, True)
    )
    assert "".join(map(alone.push, ids)) == "the"
    assert "".join(map(continued.push, ids)) == " the"
    assert alone.flush() == "" and "".join(map(alone.push, ids)) == "the"


def test_names_and_ids_of_the_model() -> None:
    gemma, t5 = (Tokenizer.from_gguf(GOLDEN[name]["metadata"]) for name in ("gemma3", "t5-prefix"))
    assert gemma.add_bos and gemma.encode_prompt("a")[0] == gemma.bos_id
    assert not t5.add_bos and t5.bos_id is None


def character_merges() -> dict[str, Any]:
    """As in a `gemma4` file: listed merges, line breaks that are tokens without a merge."""
    tokens = ["<bos>", "a", "▁", "▁a", "\n", "\n\n", "<0xC3>", "<0xA9>", "aa"]
    return {
        "tokenizer.ggml.model": "gemma4",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3, 1, 1, 1, 1, 1, 6, 6, 1],
        "tokenizer.ggml.merges": ["▁ a", "a a"],
        "tokenizer.ggml.bos_token_id": 0,
    }


def test_listed_merges_over_characters() -> None:
    tokenizer = Tokenizer.from_gguf(character_merges())
    assert tokenizer.encode("a aa\n\né\n\n\n", special=True) == [1, 3, 1, 5, 6, 7, 4, 4, 4]
    assert tokenizer.decode([1, 3, 1, 5, 6, 7]) == "a aa\n\né"
    assert tokenizer.encode_prompt("a") == [0, 1]


REFUSED = [
    ("scores", None, "scores is missing"),
    ("scores", [0.0], "scores has 1 entries"),
    ("unknown_token_id", 10**6, "unknown_token_id is 1000000"),
]


@pytest.mark.parametrize("name", ["llama", "t5-prefix"])
@pytest.mark.parametrize(("key", "value", "named"), REFUSED)
def test_damaged_metadata_is_refused_by_name(
    name: str, key: str, value: object, named: str
) -> None:
    metadata = {**GOLDEN[name]["metadata"], f"tokenizer.ggml.{key}": value}
    with pytest.raises(TokenizerError, match=named):
        Tokenizer.from_gguf(metadata)


def test_table_of_characters_is_refused_by_name() -> None:
    metadata = {**GOLDEN["t5-prefix"]["metadata"], "tokenizer.ggml.precompiled_charsmap": [1]}
    with pytest.raises(TokenizerError, match="precompiled_charsmap"):
        Tokenizer.from_gguf(metadata)


@pytest.mark.parametrize("name", GOLDEN)
def test_time_is_linear_in_length(name: str) -> None:
    tokenizer = Tokenizer.from_gguf(GOLDEN[name]["metadata"])
    for kind, text in LONG_TEXTS.items():
        started = time.process_time()
        tokenizer.encode(text, special=True)
        # Measured 0.02 to 0.3 s.
        assert time.process_time() - started < LIMIT_S, kind
