from __future__ import annotations

import base64
import json
import random
import time
from typing import Any

import pytest
import tokenizers

from tests.text import text_data
from zllm.text import pre_split_rules
from zllm.text.errors import TokenizerError
from zllm.text.tokenizer import Tokenizer

GOLDEN = text_data.load_json("tokenizer_smollm2.json")["items"]

PRE_TOKENIZERS = {
    "gpt2": text_data.BYTE_LEVEL,
    "smollm": text_data.DIGITS_THEN_BYTE_LEVEL,
    "llama3": text_data.split_then_byte_level(pre_split_rules.LLAMA3),
    "qwen2": text_data.split_then_byte_level(pre_split_rules.QWEN2),
    "removed-inverted": text_data.split_then_byte_level(
        pre_split_rules.LLAMA3, behavior="Removed", invert=True
    ),
    "digit-runs": {
        "type": "Sequence",
        "pretokenizers": [{"type": "Digits", "individual_digits": False}, text_data.BYTE_LEVEL],
    },
    "gaps": text_data.split_then_byte_level(r"\p{Lu}\p{Ll}*|[\p{P}\p{S}]{2,3}|\P{L}\d"),
    "string": text_data.split_then_byte_level("", pattern={"String": "a."}),
}


@pytest.mark.parametrize("item", GOLDEN, ids=range(len(GOLDEN)))
def test_smollm2_matches_llama_cpp(item: dict[str, Any]) -> None:
    tokenizer, data = text_data.smollm2(), base64.b64decode(item["bytes_b64"])

    assert tokenizer.encode(data, special=True) == item["ids"]
    assert tokenizer.encode(data, special=False) == item["ids_no_special"]
    decoded = base64.b64decode(item["decoded_b64"])
    assert tokenizer.decode(item["ids"], show_special=True).encode() == decoded
    assert b"".join(map(tokenizer.token_bytes, item["ids"])) == decoded


@pytest.mark.parametrize("item", text_data.load_json("smollm2_prompts.json"))
def test_encode_prompt_matches_peer(item: dict[str, Any]) -> None:
    assert text_data.smollm2().encode_prompt(item["prompt"]) == item["prompt_ids"]


def assert_same_ids(tokenizer_json: dict[str, Any], texts: list[str]) -> None:
    ours = Tokenizer.from_hf(tokenizer_json)
    peer = tokenizers.Tokenizer.from_str(json.dumps(tokenizer_json))
    for special in (True, False):
        peer.encode_special_tokens = not special
        for text in texts:
            want = peer.encode(text, add_special_tokens=False).ids
            assert ours.encode(text, special=special) == want, (text, special)


def test_chain_a_matches_tokenizers() -> None:
    assert_same_ids(text_data.load_json("chain_a_tokenizer.json"), text_data.strings(3000, seed=1))


@pytest.mark.parametrize("pre", PRE_TOKENIZERS.values(), ids=PRE_TOKENIZERS)
def test_smollm2_vocabulary_matches_tokenizers(pre: dict[str, Any]) -> None:
    assert_same_ids(text_data.smollm2_tokenizer_json(pre), text_data.strings(2500, seed=2))


@pytest.mark.parametrize(
    "model",
    [
        {"ignore_merges": True},
        {"unk_token": "<|endoftext|>"},
        {"unk_token": "<|endoftext|>", "fuse_unk": True},
    ],
    ids=["ignore-merges", "unknown", "fused-unknown"],
)
def test_model_settings_match_tokenizers(model: dict[str, Any]) -> None:
    tokenizer_json = text_data.smollm2_tokenizer_json(text_data.DIGITS_THEN_BYTE_LEVEL, **model)
    # Without its merge a word is whole only under ignore_merges.
    merges = tokenizer_json["model"]["merges"]
    tokenizer_json["model"]["merges"] = [pair for pair in merges if "".join(pair) != "Ġquick"]
    texts = [" quick", "\x01\x04\x04\x06a\x06b", *text_data.strings(1000, seed=3)]
    assert_same_ids(tokenizer_json, texts)


def test_added_token_settings_match_tokenizers() -> None:
    tokenizer_json = text_data.smollm2_tokenizer_json(text_data.BYTE_LEVEL)
    tokenizer_json["normalizer"] = {"type": "NFC"}
    tokenizer_json["added_tokens"] += [
        text_data.added_token(49152, "<u>", special=False, normalized=True),
        text_data.added_token(49153, "<u><v>", special=False),
        text_data.added_token(49154, "<w>", single_word=True),
        text_data.added_token(49155, "é!", special=False, normalized=True),
        text_data.added_token(49156, "<both>", lstrip=True, rstrip=True),
    ]
    texts = [
        "a<u>b<u><v><u><",
        "<w> x<w> <w>y .<w>,",
        "e\u0301! é! e\u0301",
        "a \n <both> \t<both> b",
    ]
    assert_same_ids(tokenizer_json, texts + text_data.strings(500, seed=4))


def test_gguf_and_tokenizer_json_agree() -> None:
    names = {"gpt-2": "gpt2", "smollm": "smollm", "llama-bpe": "llama3", "qwen2": "qwen2"}
    for gguf_name, name in names.items():
        metadata = {**text_data.smollm2_metadata(), "tokenizer.ggml.pre": gguf_name}
        settings = {"ignore_merges": gguf_name == "llama-bpe"}
        from_hf = Tokenizer.from_hf(
            text_data.smollm2_tokenizer_json(PRE_TOKENIZERS[name], **settings)
        )
        from_gguf = Tokenizer.from_gguf(metadata)
        for text in text_data.strings(300, seed=5):
            assert from_gguf.encode(text, special=True) == from_hf.encode(text, special=True)


def test_user_typed_control_token_is_text() -> None:
    ids = text_data.chain_a().encode("x<|end|>y", special=False)
    assert ids == [120, 60, 124, 101, 110, 100, 124, 62, 121]
    assert text_data.chain_a().encode("x<|end|>y", special=True) == [120, 315, 121]


def test_names_and_ids() -> None:
    smollm2, chain_a = text_data.smollm2(), text_data.chain_a()
    assert (smollm2.vocabulary, smollm2.bos_id, smollm2.eos_ids) == (49152, 1, {2})
    assert smollm2.special_ids == set(range(17)) and not smollm2.add_bos
    assert smollm2.chat_template is not None and "<|im_start|>" in smollm2.chat_template
    assert (chain_a.vocabulary, chain_a.bos_id, chain_a.eos_ids) == (330, None, {315})
    assert chain_a.special_ids == {315, 316, 317, 318, 319, 320, 321, 328, 329}
    assert chain_a.special_tokens["<|user|>"] == 319
    assert chain_a.decode([120, 315, 121, 322]) == "xy<tool_call>"
    assert chain_a.token_bytes(330) == b"" and chain_a.decode([120, 999, 121]) == "xy"


def test_unpaired_surrogates_and_bad_bytes_become_u_fffd() -> None:
    encode = text_data.smollm2().encode
    assert encode("a\ud83d", special=True) == encode("a\ufffd", special=True)
    assert encode("\ud83d\ude00", special=True) == encode("😀", special=True)
    assert encode(b"\xed\xa0\x80", special=True) == encode("\ufffd" * 3, special=True)


TEMPLATE_PROCESSING = {
    "type": "TemplateProcessing",
    "single": [
        {"SpecialToken": {"id": "<|im_start|>", "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
    ],
}


def test_bos_is_added_once_and_only_if_the_tokenizer_says_so() -> None:
    files = text_data.smollm2_tokenizer_json(text_data.BYTE_LEVEL)
    plain = Tokenizer.from_hf(files, {"bos_token": {"content": "<|im_start|>"}})
    assert plain.encode_prompt("Hi") == plain.encode("Hi", special=False)
    files["post_processor"] = {"type": "Sequence", "processors": [TEMPLATE_PROCESSING]}
    for tokenizer in (
        Tokenizer.from_hf(files),
        Tokenizer.from_hf(
            {**files, "post_processor": None},
            {"add_bos_token": True, "bos_token": "<|im_start|>"},
        ),
        Tokenizer.from_gguf({**text_data.smollm2_metadata(), "tokenizer.ggml.add_bos_token": True}),
    ):
        assert tokenizer.encode_prompt("Hi") == [1, *plain.encode("Hi", special=False)]
        assert tokenizer.encode_prompt("<|im_start|>Hi") == tokenizer.encode_prompt("Hi")
        assert tokenizer.encode_prompt("") == [1]
        assert tokenizer.encode("Hi", special=True)[0] != 1


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "normalizer": ({"normalizer": {"type": "Precompiled"}}, "Precompiled"),
    "decoder": ({"decoder": {"type": "WordPiece"}}, "WordPiece"),
    "decoder-strip": (
        {
            "pre_tokenizer": None,
            "decoder": {"type": "Strip", "content": " ", "start": 0, "stop": 1},
        },
        "Strip",
    ),
    "model": ({"model": {"type": "WordPiece", "vocab": {}}}, "WordPiece"),
    "unigram-table": ({"model": {"type": "Unigram", "vocab": {}}}, "Unigram"),
    "unigram-bytes": ({"model": {"type": "Unigram", "vocab": [["a", 0.0]]}}, "Unigram"),
    "unigram-score": (
        {"pre_tokenizer": None, "model": {"type": "Unigram", "vocab": [["a", None]]}},
        "score None",
    ),
    "pre-tokenizer": ({"pre_tokenizer": {"type": "BertPreTokenizer"}}, "BertPreTokenizer"),
    "metaspace-scheme": (
        {"pre_tokenizer": {"type": "Metaspace", "replacement": "_", "prepend_scheme": "last"}},
        "last",
    ),
    "byte-level-inside": (
        {
            "pre_tokenizer": {
                "type": "Sequence",
                "pretokenizers": [text_data.BYTE_LEVEL, {"type": "WhitespaceSplit"}],
            }
        },
        "ByteLevel must come last",
    ),
    "behavior": (
        {"pre_tokenizer": text_data.split_then_byte_level("a", behavior="Doubled")},
        "Doubled",
    ),
    "script": ({"pre_tokenizer": text_data.split_then_byte_level(r"\p{Klingon}+")}, "Klingon"),
    "set-operation": ({"pre_tokenizer": text_data.split_then_byte_level("[a&&b]")}, "&&"),
    "line-end": ({"pre_tokenizer": text_data.split_then_byte_level("a$")}, r"'\$'"),
    "group": ({"pre_tokenizer": text_data.split_then_byte_level("(a)")}, "group"),
    "post-processor": ({"post_processor": {"type": "BertProcessing"}}, "BertProcessing"),
    "damaged-added-token": ({"added_tokens": [{"content": "x"}]}, "damaged.*'id'"),
    "damaged-merges": ({"model": {"vocab": {"a": 0}, "merges": [1]}}, "damaged"),
    "appended-token": (
        {"post_processor": {**TEMPLATE_PROCESSING, "single": TEMPLATE_PROCESSING["single"][::-1]}},
        "TemplateProcessing",
    ),
}


@pytest.mark.parametrize(("change", "named"), REFUSED.values(), ids=REFUSED)
def test_unsupported_component_is_refused_by_name(change: dict[str, Any], named: str) -> None:
    files = {**text_data.load_json("chain_a_tokenizer.json"), **change}
    with pytest.raises(TokenizerError, match=named):
        Tokenizer.from_hf(files)


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("model", "rwkv", "rwkv"),
        ("pre", "unheard-of", "unheard-of"),
        ("pre", None, "pre is missing"),
        ("tokens", None, "tokens is missing"),
        ("token_type", [1], "token_type"),
        ("merges", ["q zz"], "q zz"),
        ("merges", [1], "damaged"),
        ("eos_token_id", 49152, "eos_token_id"),
    ],
)
def test_bad_gguf_metadata_is_refused_by_name(key: str, value: object, named: str) -> None:
    metadata = {**text_data.smollm2_metadata(), f"tokenizer.ggml.{key}": value}
    with pytest.raises(TokenizerError, match=named):
        Tokenizer.from_gguf(metadata)


SIZE = 100_000
LONG_TEXTS: dict[str, str | bytes] = {
    "one-letter": "a" * SIZE,
    "spaces": " " * SIZE,
    "newlines": "\n" * SIZE,
    "emoji": "😀" * (SIZE // 4),
    "combining": "a" + "\u0301\u0327" * (SIZE // 4),
    "bytes": random.Random(0).randbytes(SIZE),
    "letters": "".join(random.Random(0).choices("abcdefghij", k=SIZE)),
    "marker-starts": "<|" * (SIZE // 2),
    "spaces-before-words": (" " * 99 + "a") * (SIZE // 100),
}
# Measured 0.05 to 0.25 s on two slow cores; a quadratic step would take minutes.
LIMIT_S = 2.0


@pytest.mark.parametrize("pre", ["smollm", "llama-bpe", "qwen2"])
def test_time_is_linear_in_length(pre: str) -> None:
    metadata = {**text_data.smollm2_metadata(), "tokenizer.ggml.pre": pre}
    started = time.process_time()
    tokenizer = Tokenizer.from_gguf(metadata)
    assert time.process_time() - started < LIMIT_S
    for name, text in LONG_TEXTS.items():
        started = time.process_time()
        tokenizer.encode(text, special=True)
        assert time.process_time() - started < LIMIT_S, name
