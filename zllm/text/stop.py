"""Stop strings in streamed text."""

from __future__ import annotations

from collections.abc import Sequence

from zllm.errors import RequestError


class StopStrings:
    """Passes text on up to the first stop string, however the text is cut into pushes.

    The match that starts first wins. Exactly the tail that may still belong to the winning match is
    held back. Each character costs amortised constant time per stop string (Knuth-Morris-Pratt).
    """

    def __init__(self, stops: str | Sequence[str]) -> None:
        """Raises RequestError for an empty stop string."""
        self._stops = (stops,) if isinstance(stops, str) else tuple(stops)
        if "" in self._stops:
            raise RequestError(f"stop[{self._stops.index('')}] is empty; expected some text")
        self._borders = [_borders(stop) for stop in self._stops]
        # Per stop string: how many of its characters the text so far ends with.
        self._matched = [0] * len(self._stops)
        self._held = ""
        self._match_start: int | None = None
        self.matched = False

    def push(self, text: str) -> tuple[str, bool]:
        """Take more text: (text that is safe to emit, has a stop string matched?).

        After a match all further text is dropped.
        """
        if self.matched or not self._stops:
            return ("" if self.matched else text), self.matched
        begin = len(self._held)
        self._held += text
        for at in range(begin, len(self._held)):
            self._advance(self._held[at], at + 1)
            if self._match_start is not None and self._tail_start(at + 1) >= self._match_start:
                return self._finish(), True
        return self._release(self._tail_start(len(self._held))), False

    def flush(self) -> str:
        """End the text: what was held back. `matched` is then final.

        It can turn true here: a stop string inside the beginning of an earlier, longer one counts
        once the longer one can no longer be completed.
        """
        if self._match_start is not None:
            return self._finish()
        self._matched = [0] * len(self._stops)
        return self._release(len(self._held))

    def _advance(self, character: str, end: int) -> None:
        for index, stop in enumerate(self._stops):
            borders, length = self._borders[index], self._matched[index]
            if length == len(stop):
                continue  # a later match of the same string starts later
            while length > 0 and stop[length] != character:
                length = borders[length]
            if stop[length] == character:
                length += 1
            self._matched[index] = length
            if length == len(stop):
                start = end - length
                known = self._match_start
                self._match_start = start if known is None else min(start, known)

    def _tail_start(self, end: int) -> int:
        """Where the longest tail of the held text that is an unfinished stop string begins."""
        unfinished = (
            length
            for length, stop in zip(self._matched, self._stops, strict=True)
            if length < len(stop)
        )
        start = end - max(unfinished, default=0)
        return start if self._match_start is None else min(start, self._match_start)

    def _finish(self) -> str:
        assert self._match_start is not None
        text = self._held[: self._match_start]
        self._held, self._match_start, self.matched = "", None, True
        return text

    def _release(self, count: int) -> str:
        text = self._held[:count]
        self._held = self._held[count:]
        if self._match_start is not None:
            self._match_start -= count
        return text


def _borders(stop: str) -> list[int]:
    """borders[n]: the longest proper prefix of stop[:n] that also ends it."""
    borders = [0, 0]
    length = 0
    for character in stop[1:]:
        while length > 0 and stop[length] != character:
            length = borders[length]
        if stop[length] == character:
            length += 1
        borders.append(length)
    return borders
