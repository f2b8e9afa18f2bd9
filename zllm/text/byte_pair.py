"""Byte-level byte-pair encoding of one pre-split piece.

Source: the GPT-2 release's encoder; for unknown bytes and ignore_merges Hugging Face tokenizers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from zllm.text.errors import TokenizerError
from zllm.text.merging import merge


def _byte_alphabet() -> list[str]:
    """The printable character that stands for each byte: itself, or U+0100 upwards."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    alphabet = []
    shifted = 0x100
    for byte in range(256):
        alphabet.append(chr(byte if byte in printable else shifted))
        shifted += byte not in printable
    return alphabet


ALPHABET = _byte_alphabet()
BYTE_OF_CHARACTER = {character: byte for byte, character in enumerate(ALPHABET)}
_UNKNOWN = "\0"


def spelled_bytes(token: str) -> bytes:
    """Bytes of a token spelled in the byte alphabet; a token with other characters is its UTF-8."""
    try:
        return bytes([BYTE_OF_CHARACTER[character] for character in token])
    except KeyError:
        return token.encode("utf-8", errors="replace")


class BytePair:
    """Vocabulary and merges. `merges` are "left right" in order of priority.

    Bytes without a token become `unknown_id`, or vanish where that is None. The tokens in
    `unreachable` never come from text: control tokens whose text is also a word.
    """

    def __init__(
        self,
        vocabulary: Mapping[str, int],
        merges: Sequence[str],
        *,
        unreachable: Set[str] = frozenset(),
        whole_pieces_first: bool = False,
        unknown_id: int | None = None,
        fuse_unknown: bool = False,
    ) -> None:
        for pair in merges:
            if pair.replace(" ", "", 1) not in vocabulary or " " not in pair:
                raise TokenizerError(
                    f"merge {pair!r} is not two tokens whose join is in the vocabulary"
                )
        self._ids = vocabulary
        self._ranks = {
            pair: rank
            for rank, pair in enumerate(merges)
            if not unreachable or pair.replace(" ", "", 1) not in unreachable
        }
        self._unreachable = unreachable
        self._whole_pieces_first = whole_pieces_first
        self._unknown_id = unknown_id
        self._fuse_unknown = fuse_unknown
        self._spelling = {
            byte: character if character in vocabulary else ("" if unknown_id is None else _UNKNOWN)
            for byte, character in enumerate(ALPHABET)
        }

    def encode_piece(self, piece: str) -> list[int]:
        """Token ids of one piece. O(n log n) in its length."""
        raw = piece.encode("utf-8").decode("latin-1")
        spelled = raw.translate(self._spelling)
        if self._whole_pieces_first and len(spelled) == len(raw):
            whole = self._ids.get(spelled)
            if whole is not None and spelled not in self._unreachable:
                return [whole]
        return self._lookup(merge(list(spelled), self._ranks, " "))

    def _lookup(self, symbols: list[str]) -> list[int]:
        if self._unknown_id is None:
            return [self._ids[symbol] for symbol in symbols]
        ids: list[int] = []
        previous = ""
        for symbol in symbols:
            if symbol != _UNKNOWN:
                ids.append(self._ids[symbol])
            elif previous != _UNKNOWN or not self._fuse_unknown:
                ids.append(self._unknown_id)
            previous = symbol
        return ids
