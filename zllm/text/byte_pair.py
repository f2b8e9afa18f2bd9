"""Byte-level byte-pair encoding of one pre-split piece.

Source: the GPT-2 release's encoder; for unknown bytes and ignore_merges Hugging Face tokenizers.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from itertools import pairwise

from zllm.text.errors import TokenizerError

# Longer pieces are rarely seen twice, and scanning them for each merge would be quadratic.
_SHORT_PIECE = 40
_CACHED_PIECES = 1 << 16


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

    Bytes without a token become `unknown_id`, or vanish where that is None.
    """

    def __init__(
        self,
        vocabulary: Mapping[str, int],
        merges: Sequence[str],
        *,
        whole_pieces_first: bool = False,
        unknown_id: int | None = None,
        fuse_unknown: bool = False,
    ) -> None:
        for merge in merges:
            if merge.replace(" ", "", 1) not in vocabulary or " " not in merge:
                raise TokenizerError(
                    f"merge {merge!r} is not two tokens whose join is in the vocabulary"
                )
        self._ids = vocabulary
        self._ranks = dict(zip(merges, range(len(merges)), strict=True))
        self._whole_pieces_first = whole_pieces_first
        self._unknown_id = unknown_id
        self._fuse_unknown = fuse_unknown
        self._spelling = {
            byte: character if character in vocabulary else ("" if unknown_id is None else _UNKNOWN)
            for byte, character in enumerate(ALPHABET)
        }
        self._cache: dict[str, list[int]] = {}

    def encode_piece(self, piece: str) -> list[int]:
        """Token ids of one piece. O(n log n) in its length. The caller must not change the list."""
        ids = self._cache.get(piece)
        if ids is not None:
            return ids
        ids = self._encode(piece)
        if len(piece) <= _SHORT_PIECE:
            if len(self._cache) >= _CACHED_PIECES:
                self._cache.clear()
            self._cache[piece] = ids
        return ids

    def _encode(self, piece: str) -> list[int]:
        raw = piece.encode("utf-8").decode("latin-1")
        spelled = raw.translate(self._spelling)
        whole = self._ids.get(spelled) if self._whole_pieces_first else None
        if whole is not None and len(spelled) == len(raw):
            return [whole]
        symbols = list(spelled)
        if len(symbols) <= _SHORT_PIECE:
            _merge_short(symbols, self._ranks)
        else:
            symbols = _merge_long(symbols, self._ranks)
        return self._lookup(symbols)

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


def _merge_short(symbols: list[str], ranks: Mapping[str, int]) -> None:
    """Merge in place, best rank first, leftmost among equals."""
    no_rank = len(ranks)
    pairs = [ranks.get(f"{left} {right}", no_rank) for left, right in pairwise(symbols)]
    while pairs:
        best = min(pairs)
        if best == no_rank:
            return
        at = pairs.index(best)
        symbols[at] += symbols.pop(at + 1)
        pairs.pop(at)
        if at > 0:
            pairs[at - 1] = ranks.get(f"{symbols[at - 1]} {symbols[at]}", no_rank)
        if at < len(pairs):
            pairs[at] = ranks.get(f"{symbols[at]} {symbols[at + 1]}", no_rank)


def _merge_long(symbols: list[str], ranks: Mapping[str, int]) -> list[str]:
    """The same merges through a heap of (rank, position) and a linked list of live symbols."""
    count = len(symbols)
    after = list(range(1, count + 1))
    before = list(range(-1, count - 1))
    heap = []
    for at in range(count - 1):
        rank = ranks.get(f"{symbols[at]} {symbols[at + 1]}")
        if rank is not None:
            heap.append(rank * count + at)
    heapq.heapify(heap)
    while heap:
        rank, at = divmod(heapq.heappop(heap), count)
        right = after[at]
        # A pair that an earlier merge changed is skipped; its new form has its own heap entry.
        if not symbols[at] or right == count:
            continue
        if ranks.get(f"{symbols[at]} {symbols[right]}") != rank:
            continue
        symbols[at] += symbols[right]
        symbols[right] = ""
        following = after[at] = after[right]
        if following < count:
            before[following] = at
            new = ranks.get(f"{symbols[at]} {symbols[following]}")
            if new is not None:
                heapq.heappush(heap, new * count + at)
        if before[at] >= 0:
            new = ranks.get(f"{symbols[before[at]]} {symbols[at]}")
            if new is not None:
                heapq.heappush(heap, new * count + before[at])
    return [symbol for symbol in symbols if symbol]
