"""Byte-pair encoding over characters, as SentencePiece does it.

A character without a token becomes tokens for its UTF-8 bytes, spelled `<0x41>`, or the unknown
token.
Sources: SentencePiece's bpe_model; Hugging Face tokenizers' BPE; llama.cpp's SPM tokenizer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence, Set

from zllm.text.errors import TokenizerError
from zllm.text.merging import merge

# SentencePiece's stand-in for a space.
SPACE = "\u2581"
BYTE_TOKENS = tuple(f"<0x{byte:02X}>" for byte in range(256))


class CharacterPair:
    """Merges by rank. Tokens in `unreachable` never come from text: control tokens.

    `ranks` and `gap` are those of `merging.merge`; `results` are the tokens that merges make.
    """

    def __init__(
        self,
        vocabulary: Mapping[str, int],
        ranks: Mapping[str, int],
        gap: str,
        results: Iterable[str],
        *,
        unreachable: Set[str] = frozenset(),
        unknown: str | None = None,
        fuse_unknown: bool = False,
        byte_fallback: bool = True,
        whole_pieces_first: bool = False,
    ) -> None:
        self._ids = vocabulary
        self._ranks = ranks
        self._gap = gap
        self._unreachable = unreachable
        self._characters = {
            token for token in vocabulary if len(token) == 1 and token not in unreachable
        }
        self._unknown = unknown
        self._fuse_unknown = fuse_unknown
        self._byte_fallback = byte_fallback
        self._whole_pieces_first = whole_pieces_first
        self._words: re.Pattern[str] | None = None
        if SPACE in self._characters and not whole_pieces_first:
            self._words = _word_starts(results)

    @classmethod
    def from_merges(
        cls,
        vocabulary: Mapping[str, int],
        merges: Sequence[tuple[str, str]],
        *,
        unreachable: Set[str] = frozenset(),
        unknown: str | None = None,
        fuse_unknown: bool = False,
        byte_fallback: bool = True,
        whole_pieces_first: bool = False,
    ) -> CharacterPair:
        """Merges in order of priority. TokenizerError for one whose result is no token."""
        gap = _unused_character(merges)
        ranks = {}
        results = []
        for rank, (left, right) in enumerate(merges):
            if left + right not in vocabulary:
                raise TokenizerError(
                    f"merge {left!r} {right!r}: their join is not in the vocabulary"
                )
            if left + right not in unreachable:
                ranks[f"{left}{gap}{right}"] = rank
                results.append(left + right)
        return cls(
            vocabulary,
            ranks,
            gap,
            results,
            unreachable=unreachable,
            unknown=unknown,
            fuse_unknown=fuse_unknown,
            byte_fallback=byte_fallback,
            whole_pieces_first=whole_pieces_first,
        )

    @classmethod
    def from_scores(
        cls,
        vocabulary: Mapping[str, int],
        scores: Mapping[str, float],
        *,
        unknown: str | None = None,
    ) -> CharacterPair:
        """Two neighbours merge if their join has a score; the highest score first."""
        order = {score: rank for rank, score in enumerate(sorted({*scores.values()}, reverse=True))}
        ranks = {token: order[score] for token, score in scores.items()}
        unreachable = vocabulary.keys() - scores.keys()
        return cls(vocabulary, ranks, "", ranks, unreachable=unreachable, unknown=unknown)

    def encode_piece(self, piece: str) -> list[int]:
        """Token ids of one piece. O(n log n) in its length."""
        if self._whole_pieces_first and piece in self._ids and piece not in self._unreachable:
            return [self._ids[piece]]
        words = [piece] if self._words is None else self._words.split(piece)
        ids = self._ids
        return [
            ids[symbol]
            for word in words
            for symbol in merge(self._symbols(word), self._ranks, self._gap)
        ]

    def _symbols(self, piece: str) -> list[str]:
        if self._characters.issuperset(piece):
            return list(piece)
        symbols: list[str] = []
        # As in Hugging Face tokenizers an unknown character waits, and bytes do not end the wait.
        waiting = False
        for character in piece:
            if character in self._characters:
                if waiting and self._unknown is not None:
                    symbols.append(self._unknown)
                    waiting = False
                symbols.append(character)
            elif spelled := self._bytes(character):
                symbols += spelled
            elif self._unknown is not None:
                if waiting and not self._fuse_unknown:
                    symbols.append(self._unknown)
                waiting = True
        if waiting and self._unknown is not None:
            symbols.append(self._unknown)
        return symbols

    def _bytes(self, character: str) -> list[str]:
        """Tokens of the character's bytes; none unless there is one for each."""
        if not self._byte_fallback:
            return []
        spelled = [BYTE_TOKENS[byte] for byte in character.encode("utf-8")]
        return spelled if all(token in self._ids for token in spelled) else []


def _word_starts(results: Iterable[str]) -> re.Pattern[str]:
    """Where no merge can cross: before a space, after characters that no token has there."""
    joined = {SPACE}
    for token in results:
        at = token.find(SPACE, 1)
        while at > 0:
            joined.add(token[at - 1])
            at = token.find(SPACE, at + 1)
    kept = "".join(map(re.escape, sorted(joined)))
    return re.compile(f"(?<=[^{kept}])(?={SPACE})")


def _unused_character(merges: Iterable[tuple[str, str]]) -> str:
    """A character that no merge contains, so that joined pairs stay distinct."""
    used: set[str] = set()
    for left, right in merges:
        used.update(left, right)
    return next(character for character in map(chr, range(0x20, 0x110000)) if character not in used)
