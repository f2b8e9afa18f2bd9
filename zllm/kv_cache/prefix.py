"""Prefix reuse: the longest run of tokens that some table has cached already."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from zllm.kv_cache.paged import PagePool, PageTable


@dataclass(frozen=True, slots=True, eq=False)
class Cached:
    """Tokens [S] whose keys and values `table` holds.

    checkpoints: the plane of the recurrent state after so many tokens, held by this entry. None:
    the model has no recurrent state, and every length can be reused.
    """

    tokens: NDArray[np.int32]
    table: PageTable
    checkpoints: Mapping[int, int] | None = None
    long: bool = False  # its keys were turned by RoPE's long factors

    def reusable(self, wanted: NDArray[np.int32]) -> int:
        """Tokens of `wanted` that need not be computed again."""
        length = common_prefix(wanted, self.tokens)
        if self.checkpoints is None:
            return length
        return max((at for at in self.checkpoints if at <= length), default=0)


class PrefixCache:
    """Tables of finished sequences, least recently used first; evicted when pages run short."""

    def __init__(self, planes: PagePool | None = None) -> None:
        self._retained: list[Cached] = []
        self._planes = planes

    def match(
        self, tokens: Sequence[int], live: Iterable[Cached], *, long: bool = False
    ) -> tuple[int, Cached] | None:
        """The longest reusable prefix of a retained or live table, or None if there is none.

        `long`: of keys turned by RoPE's long factors, which short ones cannot replace.
        """
        wanted = np.asarray(tokens, np.int32)
        best: tuple[int, Cached] | None = None
        for cached in (*self._retained, *live):
            length = cached.reusable(wanted) if cached.long == long else 0
            if length and (best is None or length > best[0]):
                best = length, cached
        if best is not None and best[1] in self._retained:
            self._retained.remove(best[1])
            self._retained.append(best[1])
        return best

    def retain(self, new: Cached) -> None:
        """Keep a finished sequence's table; tables that hold nothing beyond it are released."""
        for old in list(self._retained):
            if new.long == old.long and new.reusable(old.tokens) == old.tokens.size:
                self._release(old)
        self._retained.append(new)

    def evict(self, *, keep: PageTable | None = None) -> bool:
        """Release the least recently used table but `keep`; False if there is none."""
        for cached in self._retained:
            if cached.table is not keep:
                self._release(cached)
                return True
        return False

    def reclaimable(self, *, keep: Collection[int] = ()) -> int:
        """Pages that eviction would free: held by retained tables alone, and not in `keep`."""
        held = Counter(page for cached in self._retained for page in cached.table.pages)
        return sum(
            page not in keep and count == self._retained[0].table.pool.references[page]
            for page, count in held.items()
        )

    def _release(self, cached: Cached) -> None:
        self._retained.remove(cached)
        cached.table.close()
        if self._planes is not None:
            for plane in (cached.checkpoints or {}).values():
                self._planes.release(plane)


def common_prefix(a: NDArray[np.int32], b: NDArray[np.int32]) -> int:
    size = min(a.size, b.size)
    differs = np.flatnonzero(a[:size] != b[:size])
    return int(differs[0]) if differs.size else size
