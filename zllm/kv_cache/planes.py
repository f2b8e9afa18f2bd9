"""Recurrent state: a sequence owns planes, not pages. Arithmetic only; backends own the memory."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from zllm.kv_cache.paged import PagePool

NO_PLANE = 0  # scratch; a sequence at position 0 begins from zeros, whatever a plane holds


@dataclass(slots=True)
class PlaneTable:
    """The plane with a sequence's committed state, and those that rounds in flight write.

    A round reads one plane and writes another, so a rejected round leaves the state as it was:
    `commit` keeps the index of the plane written, `rollback` drops it.
    """

    pool: PagePool  # of planes: pages of one slot
    committed: int = NO_PLANE
    written: deque[int] = field(default_factory=deque)

    def begin(self) -> tuple[int, int]:
        """The plane to read and a free one to write; the caller has checked that one is free."""
        read = self.written[-1] if self.written else self.committed
        self.written.append(self.pool.allocate())
        return read, self.written[-1]

    def commit(self) -> None:
        self._release(self.committed)
        self.committed = self.written.popleft()

    def rollback(self) -> None:
        while self.written:
            self._release(self.written.pop())

    def checkpoint(self) -> int:
        """The committed plane, held for reuse by someone who will release it."""
        return self.pool.share(self.committed)

    def close(self) -> None:
        self.rollback()
        self._release(self.committed)
        self.committed = NO_PLANE

    def _release(self, plane: int) -> None:
        if plane != NO_PLANE:
            self.pool.release(plane)
