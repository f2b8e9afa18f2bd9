"""Small tokenizers of every kind, trained here by Hugging Face's tokenizers."""

from __future__ import annotations

import collections
import functools
import json
from typing import Any

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

from tests.text import text_data

BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
SPECIAL = ["<unk>", "<s>", "</s>"]


@functools.cache
def corpus() -> tuple[str, ...]:
    """Text to train on: prompts, and strings like those of the tests."""
    prompts = [item["prompt"] for item in text_data.load_json("smollm2_prompts.json")]
    return (*prompts, *text_data.strings(1500, seed=100))


@functools.cache
def common() -> tuple[str, ...]:
    """The same without the characters drawn from everywhere; a unigram needs a token for each."""
    counts = collections.Counter("".join(corpus()))
    rare = {ord(character): None for character, count in counts.items() if count < 20}
    return tuple(text.translate(rare) for text in corpus())


def as_json(tokenizer: Tokenizer) -> dict[str, Any]:
    files: dict[str, Any] = json.loads(tokenizer.to_str())
    return files


def _bpe(tokenizer: Tokenizer, size: int, **settings: Any) -> dict[str, Any]:
    """Train merges with the tokenizer's own normalizer and pre-split."""
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=SPECIAL, show_progress=False, limit_alphabet=250, **settings
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    return as_json(tokenizer)


def _with_byte_tokens(files: dict[str, Any], names: list[str]) -> dict[str, Any]:
    """Give the vocabulary a token for each of these bytes."""
    vocabulary = files["model"]["vocab"]
    for name in names:
        vocabulary.setdefault(name, len(vocabulary))
    files["model"]["byte_fallback"] = True
    return files


@functools.cache
def llama_like() -> dict[str, Any]:
    """BPE as in Llama 2's file: a prepended space, byte fallback, no pre-split."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    # Only for training, since without a split whole sentences become tokens.
    tokenizer.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    files = _with_byte_tokens(_bpe(tokenizer, 3000), BYTES)
    files["pre_tokenizer"] = None
    files["normalizer"] = as_json_part(
        normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    )
    files["decoder"] = LLAMA_DECODER
    return files


def as_json_part(part: Any) -> dict[str, Any]:
    files: dict[str, Any] = json.loads(part.__getstate__())
    return files


LLAMA_DECODER = {
    "type": "Sequence",
    "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ],
}
GEMMA_DECODER = {"type": "Sequence", "decoders": LLAMA_DECODER["decoders"][:3]}


def variants() -> dict[str, dict[str, Any]]:
    """Tokenizers by name; each differs in one way from another."""
    llama, unigram = llama_like(), trained_unigram()
    model = llama["model"]
    some_bytes = {t: i for t, i in model["vocab"].items() if t not in BYTES[0x80:0xE0]}
    return {
        "llama": llama,
        "gemma": {
            **llama,
            "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
            "pre_tokenizer": split_string(" ", "MergedWithPrevious"),
            "decoder": GEMMA_DECODER,
        },
        "no-bytes": {**llama, "model": {**model, "byte_fallback": False}},
        "no-bytes-unfused": {
            **llama,
            "model": {**model, "byte_fallback": False, "fuse_unk": False},
        },
        "some-bytes": {**llama, "model": {**model, "vocab": renumbered(some_bytes)}},
        "whole-pieces": {
            **llama,
            "normalizer": None,
            "pre_tokenizer": metaspace("always"),
            "model": {**model, "ignore_merges": True},
        },
        **{
            f"metaspace-{scheme}{'' if split else '-unsplit'}": {
                **llama,
                "normalizer": None,
                "pre_tokenizer": metaspace(scheme, split),
                "decoder": metaspace(scheme, split),
            }
            for scheme in ("always", "first", "never")
            for split in (True, False)
        },
        "unigram": unigram,
        "unigram-bytes": unigram_with_bytes(),
        "unigram-unsplit": {**unigram, "pre_tokenizer": metaspace("first", False)},
        "unigram-words": {
            **unigram,
            "pre_tokenizer": sequence({"type": "WhitespaceSplit"}, metaspace("first")),
        },
    }


def metaspace(scheme: str, split: bool = True) -> dict[str, Any]:
    return {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": split}


def sequence(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "pretokenizers": list(parts)}


def split_string(text: str, behavior: str, invert: bool = False) -> dict[str, Any]:
    return {
        "type": "Split",
        "pattern": {"String": text},
        "behavior": behavior,
        "invert": invert,
    }


def renumbered(vocabulary: dict[str, int]) -> dict[str, int]:
    return {token: id for id, token in enumerate(sorted(vocabulary, key=vocabulary.__getitem__))}


@functools.cache
def trained_unigram() -> dict[str, Any]:
    """Unigram as in T5's file, without its table of characters."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=1500, special_tokens=SPECIAL, unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(common(), trainer)
    return as_json(tokenizer)


def unigram_with_bytes() -> dict[str, Any]:
    files = trained_unigram()
    vocabulary = [*files["model"]["vocab"], *([name, -20.0] for name in BYTES)]
    model = {**files["model"], "vocab": vocabulary, "byte_fallback": True}
    fallback = {"type": "ByteFallback"}
    decoder = {"type": "Sequence", "decoders": [fallback, metaspace("always")]}
    return {**files, "model": model, "decoder": decoder}


def with_added(files: dict[str, Any], *tokens: AddedToken) -> dict[str, Any]:
    """The same tokenizer with more added tokens."""
    tokenizer = Tokenizer.from_str(json.dumps(files))
    tokenizer.add_tokens(list(tokens))
    return as_json(tokenizer)
