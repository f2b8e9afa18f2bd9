"""The encoders that `tokenizer.ggml.model` names, with what llama.cpp applies along with each.

Source: llama.cpp's vocabulary loader and tokenizers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from zllm.text.byte_pair import BytePair
from zllm.text.character_pair import SPACE, CharacterPair
from zllm.text.decoding import BYTE_LEVEL, SENTENCE_PIECE, Decoding, Start
from zllm.text.errors import TokenizerError
from zllm.text.gguf_vocabulary import PREFIX, Kind, Vocabulary, require
from zllm.text.normalizer import UNCHANGED, Normalizer, prefixed, replaced
from zllm.text.piece_cache import PieceCache, PieceEncoder
from zllm.text.pre_split_rules import GEMMA4, Rule, rule_of
from zllm.text.pre_tokenizer import UNCUT, PreTokenizer
from zllm.text.unigram import UNKNOWN_PENALTY, Unigram


@dataclass(frozen=True, slots=True)
class ModelParts:
    """What follows from the tokenizer model; ids are those used where the file names none."""

    encoder: PieceEncoder
    decoding: Decoding
    pre_tokenizer: PreTokenizer = UNCUT
    normalizer: Normalizer = UNCHANGED
    add_bos: bool = False
    bos_id: int | None = None
    eos_id: int | None = None


def byte_level(metadata: Mapping[str, Any], vocabulary: Vocabulary) -> ModelParts:
    """`gpt2`: merges over the byte alphabet, after the pre-split that `pre` names."""
    # llama.cpp reads a missing `pre` as its default split, which no supported model was trained on.
    rule = rule_of(require(metadata, "pre", str))
    encoder = BytePair(
        vocabulary.ids,
        require(metadata, "merges", Sequence),
        unreachable=vocabulary.of_kind(Kind.CONTROL, Kind.UNKNOWN),
        whole_pieces_first=rule.whole_pieces_first,
    )
    return ModelParts(PieceCache(encoder), BYTE_LEVEL, rule.pre_tokenizer(), add_bos=rule.add_bos)


def sentence_piece(metadata: Mapping[str, Any], vocabulary: Vocabulary) -> ModelParts:
    """`llama`: SentencePiece's BPE, whose merges follow from the tokens' scores."""
    merged = (Kind.NORMAL, Kind.USER_DEFINED, Kind.UNUSED)
    rows = zip(vocabulary.tokens, vocabulary.kinds, vocabulary.scores(metadata), strict=True)
    scores = {token: score for token, kind, score in rows if kind in merged}
    encoder = CharacterPair.from_scores(
        vocabulary.ids, scores, unknown=_unknown(metadata, vocabulary, usual=0)
    )
    prefix = bool(metadata.get(PREFIX + "add_space_prefix", True))
    escape = replaced(" ", SPACE)
    return ModelParts(
        PieceCache(encoder),
        replace(SENTENCE_PIECE, start=Start.ONE_SPACE) if prefix else SENTENCE_PIECE,
        normalizer=Normalizer((prefixed(SPACE), escape) if prefix else (escape,)),
        add_bos=True,
        bos_id=1,
        eos_id=2,
    )


def character_merges(metadata: Mapping[str, Any], vocabulary: Vocabulary) -> ModelParts:
    """`gemma4`: listed merges over characters, line by line."""
    merges = [_pair(merge) for merge in require(metadata, "merges", Sequence)]
    encoder = CharacterPair.from_merges(
        vocabulary.ids,
        merges,
        unreachable=vocabulary.of_kind(Kind.CONTROL, Kind.UNKNOWN),
        unknown=_unknown(metadata, vocabulary, usual=None),
    )
    return ModelParts(
        PieceCache(_LineBreaks(encoder, vocabulary.ids)),
        SENTENCE_PIECE,
        Rule((GEMMA4,)).pre_tokenizer(),
        Normalizer((replaced(" ", SPACE),)),
        add_bos=True,
    )


def unigram(metadata: Mapping[str, Any], vocabulary: Vocabulary) -> ModelParts:
    """`t5`: SentencePiece's unigram model."""
    if metadata.get(PREFIX + "precompiled_charsmap"):
        raise TokenizerError(f"{PREFIX}precompiled_charsmap is not supported")
    rows = list(zip(vocabulary.tokens, vocabulary.kinds, vocabulary.scores(metadata), strict=True))
    # A user-defined token wins over any cut of its text.
    tokens = {
        token: (id, 0.0 if kind == Kind.USER_DEFINED else score)
        for id, (token, kind, score) in enumerate(rows)
        if kind in (Kind.NORMAL, Kind.USER_DEFINED, Kind.UNUSED)
    }
    lowest = min((score for _, kind, score in rows if kind == Kind.NORMAL), default=0.0)
    unknown = _unknown(metadata, vocabulary, usual=2)
    encoder = Unigram(
        tokens,
        unknown_id=None if unknown is None else vocabulary.ids[unknown],
        unknown_score=lowest - UNKNOWN_PENALTY,
    )
    prefix = bool(metadata.get(PREFIX + "add_space_prefix", False))
    single = bool(metadata.get(PREFIX + "remove_extra_whitespaces", False))
    return ModelParts(
        PieceCache(encoder),
        replace(SENTENCE_PIECE, start=Start.ONE_SPACE) if prefix or single else SENTENCE_PIECE,
        normalizer=Normalizer((_single_spaces if single else _spaces(prefix),)),
        eos_id=1,
    )


@dataclass(frozen=True, slots=True)
class _LineBreaks:
    """Takes a run of line breaks that is a token as that token, whatever the merges make of it."""

    encoder: PieceEncoder
    ids: Mapping[str, int]

    def encode_piece(self, piece: str) -> list[int]:
        if piece[:1] == "\n" and piece in self.ids:
            return [self.ids[piece]]
        return self.encoder.encode_piece(piece)


def _pair(merge: str) -> tuple[str, str]:
    """Both tokens of a merge; a token may be a space, so the gap is never its first character."""
    left, _, right = merge[1:].partition(" ")
    return merge[:1] + left, right


def _unknown(
    metadata: Mapping[str, Any], vocabulary: Vocabulary, *, usual: int | None
) -> str | None:
    """Text of the unknown token."""
    id = metadata.get(PREFIX + "unknown_token_id", usual)
    if id is None:
        return None
    if not isinstance(id, int) or not 0 <= id < len(vocabulary.tokens):
        raise TokenizerError(f"{PREFIX}unknown_token_id is {id!r}; expected the id of a token")
    return vocabulary.tokens[id]


def _spaces(prefix: bool) -> Callable[[str], str]:
    """Escape spaces; with `prefix`, put one before any text that is not all spaces."""

    def escape(text: str) -> str:
        begin = SPACE if prefix and text.strip(" ") else ""
        return begin + text.replace(" ", SPACE)

    return escape


def _single_spaces(text: str) -> str:
    """One escaped space before each word, and no others."""
    return "".join(SPACE + word for word in text.split(" ") if word)
