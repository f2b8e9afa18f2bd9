"""Byte-pair merging: neighbouring symbols join, best rank first.

Source: Sennrich et al. 2016, section 3.2; ties go to the left, as in SentencePiece and Hugging Face
tokenizers.
"""

from __future__ import annotations

import heapq
import sys
from collections.abc import Mapping
from itertools import pairwise

# Scanning a longer piece for each merge would be quadratic.
_SHORT_PIECE = 40
_NO_RANK = sys.maxsize


def merge(symbols: list[str], ranks: Mapping[str, int], gap: str) -> list[str]:
    """Symbols after all merges; O(n log n). May change `symbols`.

    `ranks` knows a pair as left + gap + right, and the lowest rank merges first. With an empty gap
    the rank is that of the joined text, however it was cut.
    """
    if len(symbols) > _SHORT_PIECE:
        return _merge_long(symbols, ranks, gap)
    _merge_short(symbols, ranks, gap)
    return symbols


def _merge_short(symbols: list[str], ranks: Mapping[str, int], gap: str) -> None:
    """Merge in place, best rank first, leftmost among equals."""
    pairs = [ranks.get(f"{left}{gap}{right}", _NO_RANK) for left, right in pairwise(symbols)]
    while pairs:
        best = min(pairs)
        if best == _NO_RANK:
            return
        at = pairs.index(best)
        symbols[at] += symbols.pop(at + 1)
        pairs.pop(at)
        if at > 0:
            pairs[at - 1] = ranks.get(f"{symbols[at - 1]}{gap}{symbols[at]}", _NO_RANK)
        if at < len(pairs):
            pairs[at] = ranks.get(f"{symbols[at]}{gap}{symbols[at + 1]}", _NO_RANK)


def _merge_long(symbols: list[str], ranks: Mapping[str, int], gap: str) -> list[str]:
    """The same merges through a heap of (rank, position) and a linked list of live symbols."""
    count = len(symbols)
    after = list(range(1, count + 1))
    before = list(range(-1, count - 1))
    heap = []
    for at in range(count - 1):
        rank = ranks.get(f"{symbols[at]}{gap}{symbols[at + 1]}")
        if rank is not None:
            heap.append(rank * count + at)
    heapq.heapify(heap)
    while heap:
        rank, at = divmod(heapq.heappop(heap), count)
        right = after[at]
        # A pair that an earlier merge changed is skipped; its new form has its own heap entry.
        if not symbols[at] or right == count:
            continue
        if ranks.get(f"{symbols[at]}{gap}{symbols[right]}") != rank:
            continue
        symbols[at] += symbols[right]
        symbols[right] = ""
        following = after[at] = after[right]
        if following < count:
            before[following] = at
            new = ranks.get(f"{symbols[at]}{gap}{symbols[following]}")
            if new is not None:
                heapq.heappush(heap, new * count + at)
        if before[at] >= 0:
            new = ranks.get(f"{symbols[before[at]]}{gap}{symbols[at]}")
            if new is not None:
                heapq.heappush(heap, new * count + before[at])
    return [symbol for symbol in symbols if symbol]
