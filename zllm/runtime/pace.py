"""How many rows a prefill round takes: as many as were done within a time limit.

A long round keeps a cancel waiting, holds up the answers of others, and may trip the watchdog of
a GPU. Rows are halved or doubled, since devices keep a plan for few numbers of them.
"""

from __future__ import annotations

from dataclasses import dataclass

ROUND_SECONDS = 0.5
LEAST_ROWS = 8  # fewer cost a device as much


@dataclass(slots=True)
class Pace:
    limit_s: float = ROUND_SECONDS
    rows: int | None = None  # None: nothing was too slow so far
    _done_s: float = 0.0  # when the round before was done

    def most(self, backend_rows: int) -> int:
        """Rows of the next round, of a backend that takes so many at once."""
        return backend_rows if self.rows is None else min(self.rows, backend_rows)

    def done(self, rows: int, backend_rows: int, submitted_s: float, now_s: float) -> None:
        """A prefill round of `rows` was done; it began when the device was free."""
        took = now_s - max(submitted_s, self._done_s)
        self._done_s = now_s
        most = self.most(backend_rows)
        if 2 * rows <= most:  # a remainder of a prompt says little
            return
        if took > self.limit_s and most > LEAST_ROWS:
            while most > LEAST_ROWS and took > self.limit_s:
                most, took = max(most // 2, LEAST_ROWS), took / 2
            self.rows = most
        elif 2 * took < self.limit_s and most < backend_rows:
            self.rows = 2 * most

    def other_done(self, now_s: float) -> None:
        """A decode round was done."""
        self._done_s = now_s
