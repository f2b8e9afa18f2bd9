"""The encoder that the `model` of tokenizer.json describes.

Source: Hugging Face tokenizers' models.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from decimal import Decimal
from math import isfinite
from typing import Any

from zllm.text.byte_pair import BytePair
from zllm.text.character_pair import BYTE_TOKENS, CharacterPair
from zllm.text.errors import TokenizerError
from zllm.text.piece_cache import PieceEncoder
from zllm.text.unigram import UNKNOWN_PENALTY, Unigram

_UNSUPPORTED_SETTINGS = ("dropout", "continuing_subword_prefix", "end_of_word_suffix")


def vocabulary_of(model: Mapping[str, Any]) -> dict[str, int]:
    """Id of each token. TokenizerError if there is no table of them."""
    table = model.get("vocab")
    if model.get("type") == "Unigram" and isinstance(table, list):
        return {token: id for id, (token, _) in enumerate(table)}
    if model.get("type", "BPE") == "BPE" and isinstance(table, Mapping):
        return dict(table)
    raise TokenizerError(
        f"tokenizer.json: model {model.get('type')!r} with a vocab of {type(table).__name__}; "
        "supported: BPE with a table, Unigram with a list"
    )


def encoder_of(
    model: Mapping[str, Any],
    vocabulary: Mapping[str, int],
    *,
    byte_level: bool,
    unreachable: Set[str],
) -> PieceEncoder:
    """The encoder. `unreachable`: tokens that never come from text.

    TokenizerError naming a setting that is damaged or not supported.
    """
    if model.get("type") == "Unigram":
        if byte_level:
            raise TokenizerError("tokenizer.json: Unigram over ByteLevel pieces is not supported")
        return _unigram(model, vocabulary, unreachable)
    for name in _UNSUPPORTED_SETTINGS:
        if model.get(name):
            raise TokenizerError(f"tokenizer.json: model setting {name} is not supported")
    unknown = model.get("unk_token")
    if unknown is not None and unknown not in vocabulary:
        raise TokenizerError(f"tokenizer.json: unk_token {unknown!r} is not in the vocabulary")
    if byte_level:
        return _byte_pair(model, vocabulary, unreachable, unknown)
    return CharacterPair.from_merges(
        vocabulary,
        [_pair(merge) for merge in model.get("merges") or ()],
        unreachable=unreachable,
        unknown=unknown,
        fuse_unknown=bool(model.get("fuse_unk")),
        byte_fallback=bool(model.get("byte_fallback")),
        whole_pieces_first=bool(model.get("ignore_merges")),
    )


def _byte_pair(
    model: Mapping[str, Any],
    vocabulary: Mapping[str, int],
    unreachable: Set[str],
    unknown: str | None,
) -> BytePair:
    merges = model.get("merges") or []
    return BytePair(
        vocabulary,
        [merge if isinstance(merge, str) else " ".join(merge) for merge in merges],
        unreachable=unreachable,
        whole_pieces_first=bool(model.get("ignore_merges")),
        unknown_id=None if unknown is None else vocabulary[unknown],
        fuse_unknown=bool(model.get("fuse_unk")),
    )


def _pair(merge: str | list[str]) -> tuple[str, str]:
    """Files written before tokenizers 0.20 spell a merge "left right", later ones as a pair."""
    parts = merge.split(" ") if isinstance(merge, str) else merge
    if len(parts) != 2:
        raise TokenizerError(f"tokenizer.json: merge {merge!r} is not two tokens")
    return parts[0], parts[1]


def _unigram(
    model: Mapping[str, Any], vocabulary: Mapping[str, int], unreachable: Set[str]
) -> Unigram:
    scores = [_as_peer_reads(score) for _, score in model["vocab"]]
    unknown_id = model.get("unk_id")
    if unknown_id is not None and not 0 <= unknown_id < len(scores):
        raise TokenizerError(f"tokenizer.json: unk_id {unknown_id!r} is not in the vocabulary")
    return Unigram(
        {token: (id, scores[id]) for token, id in vocabulary.items() if token not in unreachable},
        unknown_id=unknown_id,
        unknown_score=min(scores, default=0.0) - UNKNOWN_PENALTY,
        byte_ids=[vocabulary.get(token) for token in BYTE_TOKENS]
        if model.get("byte_fallback")
        else None,
    )


def _as_peer_reads(score: float) -> float:
    """The score as serde_json reads its decimal form: off by a rounding for some of 17 digits.

    Cuts of equal score differ in nothing else, so this decides between them.
    """
    if not isinstance(score, int | float) or not isfinite(score):
        raise TokenizerError(f"tokenizer.json: vocab score {score!r}; expected a finite number")
    parts = Decimal(repr(score)).as_tuple()
    assert isinstance(parts.exponent, int)
    if abs(parts.exponent) > 300:
        return score
    digits = float(int("".join(map(str, parts.digits))))
    size = digits / 10.0**-parts.exponent if parts.exponent < 0 else digits * 10.0**parts.exponent
    return -size if parts.sign else size
