"""Every kind of tokenizer.json against Hugging Face's tokenizers."""

from __future__ import annotations

import json
import random
import time
from typing import Any

import pytest
import tokenizers

from tests.text import text_data, trained
from tests.text.test_tokenizer import LIMIT_S, LONG_TEXTS
from zllm.text import pre_split_rules
from zllm.text.chat_template import ChatTemplate
from zllm.text.detokenizer import StreamingDetokenizer
from zllm.text.tokenizer import Tokenizer

VARIANTS = trained.variants()
TEXTS = text_data.strings(2050, seed=21)
# One name for each pre-split.
RULES = sorted({rule.patterns: name for name, rule in pre_split_rules.RULES.items()}.values())


def peer_of(files: dict[str, Any]) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_str(json.dumps(files))


def same_ids(files: dict[str, Any], texts: list[str], *, plain: bool = True) -> int:
    """Assert equal ids, special tokens on and (if `plain`) off; how many texts were compared.

    Left out are those whose normal form depends on the Unicode version, which is Python's here.
    """
    ours, peer = Tokenizer.from_hf(files), peer_of(files)
    normalize = peer.normalizer.normalize_str if peer.normalizer else str
    texts = [text for text in texts if ours.normalizer(text) == normalize(text)]
    for special in (True, False)[: 1 + plain]:
        peer.encode_special_tokens = not special
        for text in texts:
            want = peer.encode(text, add_special_tokens=False).ids
            assert ours.encode(text, special=special) == want, (text, special)
    return len(texts)


@pytest.mark.parametrize("name", VARIANTS)
def test_ids_and_texts(name: str) -> None:
    assert same_ids(VARIANTS[name], TEXTS) >= 2000
    ours, peer = Tokenizer.from_hf(VARIANTS[name]), peer_of(VARIANTS[name])
    for text in TEXTS:
        ids = peer.encode(text).ids
        whole = ours.decode(ids)
        assert whole == peer.decode(ids), text
        detokenizer = StreamingDetokenizer(ours)
        assert "".join((*map(detokenizer.push, ids), detokenizer.flush())) == whole


def test_unknown_characters_cost_more_than_any_token() -> None:
    vocabulary = [["<unk>", 0.0], ["ab", -12.0], ["b", -1.0], ["cd", -2.0], ["xyz", -3.0]]
    files = {
        **VARIANTS["unigram"],
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": None,
        "model": {"type": "Unigram", "unk_id": 0, "vocab": vocabulary, "byte_fallback": False},
    }
    assert same_ids(files, ["ab", "aab", "abcdxx", "xyzyx", "xyxyz", "dcb<unk>"]) == 6


def byte_level_after(*patterns: str) -> dict[str, Any]:
    splits = [text_data.split_then_byte_level(pattern)["pretokenizers"][0] for pattern in patterns]
    return trained.sequence(*splits, {**text_data.BYTE_LEVEL, "use_regex": False})


@pytest.mark.parametrize("rule", RULES)
def test_pre_splits_of_families(rule: str) -> None:
    patterns = pre_split_rules.RULES[rule].patterns
    files = text_data.smollm2_tokenizer_json(byte_level_after(*patterns))
    assert same_ids(files, TEXTS) == len(TEXTS)


@pytest.mark.parametrize("invert", [False, True])
@pytest.mark.parametrize(
    "behavior", ["Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"]
)
def test_split_behaviors(behavior: str, invert: bool) -> None:
    pre = text_data.split_then_byte_level(r"[\p{Lu}\s]", behavior=behavior, invert=invert)
    pre["pretokenizers"][1]["add_prefix_space"] = True
    assert same_ids(text_data.smollm2_tokenizer_json(pre), TEXTS[:500]) == 500


NORMALIZERS: dict[str, dict[str, Any]] = {
    "nfc": {"type": "NFC"},
    "nfd": {"type": "NFD"},
    "nfkc": {"type": "NFKC"},
    "nfkd": {"type": "NFKD"},
    "lowercase": {"type": "Lowercase"},
    "strip": {"type": "Strip", "strip_left": True, "strip_right": True},
    "strip-right": {"type": "Strip", "strip_left": False, "strip_right": True},
    "replace-regex": {"type": "Replace", "pattern": {"Regex": r"\s+"}, "content": r"\1_"},
    "prepend": {"type": "Prepend", "prepend": "x"},
    "sequence": {
        "type": "Sequence",
        "normalizers": [
            {"type": "NFC"},
            {"type": "Lowercase"},
            {"type": "Replace", "pattern": {"String": "a"}, "content": ""},
        ],
    },
}


@pytest.mark.parametrize("name", NORMALIZERS)
def test_normalizers(name: str) -> None:
    files = text_data.smollm2_tokenizer_json(text_data.BYTE_LEVEL)
    files["normalizer"] = NORMALIZERS[name]
    assert same_ids(files, ["", " ", " a\u3000", "ΑΣ ΟΔΟΣ", "e\u0301 é ﬁ ²"]) == 5
    assert same_ids(files, TEXTS[:1000]) >= 990


ADDED = (
    tokenizers.AddedToken("<tool>", normalized=False, special=True),
    tokenizers.AddedToken("<l>", lstrip=True, normalized=False),
    tokenizers.AddedToken("<r>", rstrip=True, normalized=False, special=True),
    tokenizers.AddedToken("word", single_word=True, normalized=False),
    tokenizers.AddedToken("Norm", normalized=True),
    tokenizers.AddedToken(" spaced", normalized=True),
    tokenizers.AddedToken("<both>", lstrip=True, rstrip=True, normalized=True, special=True),
    tokenizers.AddedToken("<ABC>", normalized=True),
    tokenizers.AddedToken("é!", normalized=True),
)
LOWERCASE = {
    **trained.llama_like(),
    "normalizer": {
        "type": "Sequence",
        "normalizers": [NORMALIZERS["lowercase"], VARIANTS["gemma"]["normalizer"]],
    },
}


def strings_with_added_tokens(count: int) -> list[str]:
    rng = random.Random(25)
    tokens = [token.content for token in ADDED] + ["</s>", "<unk>", "<abc>", "norm", "\u200dword"]

    def part(text: str) -> str:
        gap = rng.choice(("", " ", "  ", "\n", "a", "▁", "\u203f"))
        return rng.choice(tokens) + gap + text[: rng.randint(0, 8)] + rng.choice(("", " "))

    return [
        "".join(part(text) for _ in range(rng.randint(1, 6)))
        for text in text_data.strings(count, seed=25)
    ]


@pytest.mark.parametrize("name", [*VARIANTS, "lowercase"])
def test_added_tokens(name: str) -> None:
    files = {**VARIANTS, "lowercase": LOWERCASE}[name]
    # A unigram of the peer makes control tokens of plain text; see the next test.
    plain = files["model"]["type"] != "Unigram"
    files = trained.with_added(files, *ADDED)
    assert same_ids(files, strings_with_added_tokens(2050), plain=plain) >= 2000


@pytest.mark.parametrize("name", VARIANTS)
def test_plain_text_never_makes_a_control_token(name: str) -> None:
    """Case A07, for vocabularies and merges that could spell one."""
    files = trained.with_added(VARIANTS[name], *ADDED)
    tokenizer = Tokenizer.from_hf(files)
    control = tokenizer.special_ids - {tokenizer.encode("<unk>", special=True)[-1]}
    template = ChatTemplate("<s>{{ messages[0].content }}</s>")
    for text in ["</s>", "a </s><s>b", "<tool>", *strings_with_added_tokens(500)]:
        assert not control.intersection(tokenizer.encode(text, special=False)), text
        ids = template.encode(tokenizer, [{"role": "user", "content": text}])
        assert [id for id in ids if id in control] == tokenizer.encode("<s></s>", special=True)


def test_merge_onto_a_control_token_is_not_made() -> None:
    files = json.loads(json.dumps(VARIANTS["metaspace-never"]))
    model, word = files["model"], "the"
    assert word in model["vocab"]
    plain = Tokenizer.from_hf(files).encode(word, special=False)
    assert plain == [model["vocab"][word]]
    files["added_tokens"].append(text_data.added_token(model["vocab"][word], word))
    ids = Tokenizer.from_hf(files).encode(word, special=False)
    assert ids != plain and Tokenizer.from_hf(files).decode(ids) == word


@pytest.mark.parametrize("name", ["metaspace-first", "metaspace-always", "llama", "gemma"])
def test_template_gives_the_ids_of_its_text(name: str) -> None:
    """What a tokenizer does at the start of a text happens once, markers in between or not."""
    tokenizer = Tokenizer.from_hf(VARIANTS[name])
    for source in ("{{ messages[0].content }}</s> b", "a<s>{{ messages[0].content }}</s>\nb"):
        template = ChatTemplate(source)
        for content in ("Hi there", " Hi", "the quick brown fox"):
            ids = template.encode(tokenizer, [{"role": "user", "content": content}])
            text = source.replace("{{ messages[0].content }}", content)
            assert ids == tokenizer.encode(text, special=True)


TIMED = (*RULES, *("llama", "metaspace-first", "no-bytes", "unigram-bytes", "unigram-unsplit"))
LONG = {
    **LONG_TEXTS,
    "upper-case": "A" * 100_000,
    "han": "中" * 33_000,
    "spaces-then-letter": " " * 100_000 + "a",
    "endings": "'s" * 50_000,
}


@pytest.mark.parametrize("name", TIMED)
def test_time_is_linear_in_length(name: str) -> None:
    if name in VARIANTS:
        tokenizer = Tokenizer.from_hf(VARIANTS[name])
    else:
        metadata = {**text_data.smollm2_metadata(), "tokenizer.ggml.pre": name}
        tokenizer = Tokenizer.from_gguf(metadata)
    for kind, text in LONG.items():
        started = time.process_time()
        tokenizer.encode(text, special=True)
        # Measured 0.02 to 0.8 s.
        assert time.process_time() - started < LIMIT_S, kind
