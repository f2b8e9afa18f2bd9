"""Tokenizer files that the tests of this folder read, and seeded strings to try them on."""

from __future__ import annotations

import functools
import gzip
import json
import random
from pathlib import Path
from typing import Any

from zllm.text.tokenizer import Tokenizer

DATA = Path(__file__).parent.parent / "data" / "text"


def load_json(name: str) -> Any:
    return json.loads((DATA / name).read_text())


@functools.cache
def smollm2_metadata() -> dict[str, Any]:
    """The tokenizer part of SmolLM2-135M-Instruct's GGUF metadata.

    Its tokens are 17 control tokens, 235 bytes and then the results of the merges, in order; the
    file holds the first two groups and the merges.
    """
    data = json.loads(gzip.decompress((DATA / "smollm2_tokenizer.json.gz").read_bytes()))
    tokens = data["first_tokens"] + [merge.replace(" ", "") for merge in data["merges"]]
    control = data["control_tokens"]
    return {
        **data["metadata"],
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3] * control + [1] * (len(tokens) - control),
        "tokenizer.ggml.merges": data["merges"],
    }


def smollm2_tokenizer_json(pre_tokenizer: dict[str, Any], **model: Any) -> dict[str, Any]:
    """SmolLM2's vocabulary as a tokenizer.json, with any pre-tokenizer."""
    metadata = smollm2_metadata()
    tokens = metadata["tokenizer.ggml.tokens"]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [added_token(id, tokens[id]) for id in range(17)],
        "normalizer": None,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": None,
        "decoder": BYTE_LEVEL,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: id for id, token in enumerate(tokens)},
            "merges": [merge.split(" ") for merge in metadata["tokenizer.ggml.merges"]],
            **model,
        },
    }


def added_token(id: int, content: str, **settings: bool) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"id": id, "content": content, **flags, "special": True, **settings}


BYTE_LEVEL = {
    "type": "ByteLevel",
    "add_prefix_space": False,
    "trim_offsets": True,
    "use_regex": True,
}
DIGITS_THEN_BYTE_LEVEL = {
    "type": "Sequence",
    "pretokenizers": [{"type": "Digits", "individual_digits": True}, BYTE_LEVEL],
}


def split_then_byte_level(regex: str, **settings: Any) -> dict[str, Any]:
    split = {
        "type": "Split",
        "pattern": {"Regex": regex},
        "behavior": "Isolated",
        "invert": False,
        **settings,
    }
    return {"type": "Sequence", "pretokenizers": [split, {**BYTE_LEVEL, "use_regex": False}]}


@functools.cache
def smollm2() -> Tokenizer:
    return Tokenizer.from_gguf(smollm2_metadata())


@functools.cache
def chain_a() -> Tokenizer:
    return Tokenizer.from_hf(
        load_json("chain_a_tokenizer.json"), load_json("chain_a_tokenizer_config.json")
    )


# Code-point ranges with their weight: what pre-splits and merges tell apart.
_ALPHABETS = (
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ",
    "0123456789٣٤٥½²Ⅷ①㊀",
    " \t\n\r\x0b\x0c\x85\xa0\u1680\u2003\u2028\u202f\u3000",
    "\x00\x01\x04\x1c\x1d\x1e\x1f\x7f\u200b\ufeff\ufffd",
    "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~«»…“”€∑",
    "äöüßéèñçøåœÄÖÜſKÅıİ",
    "привет мирЖЩ Ελληνικά",
    "你好世界今天天气日本語のテキスト한국어문장",
    "אבגשלוםمرحبابالعالم",
    "नमस्तेสวัสดีদুনিয়াᄀ\u1161\u11a8",
    "\u0301\u0308\u0327\u20dd\u0e31\ufe0f\u200d",
    "😀😃👍🏽👨👩👧👦🇩🇪🏴🧑𝔘𝟘𐐷",
)
_WORD_LIST = """\
the quick brown fox don't we'll I'M they'RE it'ſ 'tis def return self.x==1 foo_bar <|im_start|>
<|im_end|> <|endoftext|> <|im_ <file_sep> <|end|> <|pad_l|> <|pad_r|> <tool_call> </tool_call>
https://example.org/a?b=c {"a":1} 3.14 1,000,000 CamelCase"""
_WORDS = (*_WORD_LIST.split(), "", "\n", "\n\n", "\t", "\r\n", " ", "    ")


def strings(count: int, seed: int) -> list[str]:
    """`count` seeded strings that mix words, scripts, white space and controls."""
    rng = random.Random(seed)
    return [_string(rng) for _ in range(count)]


def _string(rng: random.Random) -> str:
    parts: list[str] = []
    for _ in range(rng.randint(0, 12)):
        kind = rng.random()
        if kind < 0.35:
            parts.append(rng.choice(_WORDS) + rng.choice(("", " ", "  ", "\n")))
        elif kind < 0.9:
            alphabet = rng.choice(_ALPHABETS)
            parts.append("".join(rng.choices(alphabet, k=rng.randint(1, 9))))
        elif kind < 0.95:
            parts.append(rng.choice(rng.choice(_ALPHABETS)) * rng.randint(1, 120))
        else:
            parts.append(_any_characters(rng))
    return "".join(parts)


def _any_characters(rng: random.Random) -> str:
    # Planes 0 and 1, surrogates left out.
    codes = (rng.choice((rng.randrange(0xD800), rng.randrange(0xE000, 0x1FFFF))) for _ in range(5))
    return "".join(map(chr, codes))
