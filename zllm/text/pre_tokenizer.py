"""Pre-splits: cut text into the pieces that an encoder sees one by one.

A pre-split is a chain of stages. Each stage cuts every piece of the stage before it, and sees
nothing beyond that piece.
Source: Hugging Face tokenizers' pre_tokenizers and SplitDelimiterBehavior.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Protocol


class Stage(Protocol):
    """One cut. Pieces may be empty; the first always begins where its text begins."""

    def cut(self, text: str, at_start: bool) -> list[str]:
        """Pieces of `text`, which begins the whole text if `at_start`."""
        ...


class Behavior(Enum):
    """What becomes of a match; the values are those of tokenizer.json."""

    ISOLATED = "Isolated"
    REMOVED = "Removed"
    MERGED_WITH_PREVIOUS = "MergedWithPrevious"
    MERGED_WITH_NEXT = "MergedWithNext"
    CONTIGUOUS = "Contiguous"


@dataclass(frozen=True, slots=True)
class Split:
    """Cuts at the matches of a pattern, or at what lies between them if `invert`."""

    pattern: re.Pattern[str]
    behavior: Behavior = Behavior.ISOLATED
    invert: bool = False

    def cut(self, text: str, at_start: bool) -> list[str]:
        if self.behavior is Behavior.ISOLATED:
            pieces = self.pattern.findall(text)
            if sum(map(len, pieces)) == len(text):
                return pieces
        return _BEHAVIORS[self.behavior](list(self._segments(text)))

    def _segments(self, text: str) -> Iterator[tuple[str, bool]]:
        """Yield (segment, is it a match?); they join to `text`."""
        end = 0
        for match in self.pattern.finditer(text):
            if match.start() > end:
                yield text[end : match.start()], self.invert
            if match.end() > match.start():
                yield match.group(), not self.invert
            end = match.end()
        if end < len(text):
            yield text[end:], self.invert


@dataclass(frozen=True, slots=True)
class Prefix:
    """Writes `space` for every space, and puts one before a text that does not begin with it.

    `only_first`: only before the piece that begins the whole text.
    """

    space: str
    only_first: bool = False

    def cut(self, text: str, at_start: bool) -> list[str]:
        text = text.replace(" ", self.space)
        wanted = text != "" and (at_start or not self.only_first)
        return [self.space + text if wanted and not text.startswith(self.space) else text]


@dataclass(frozen=True, slots=True)
class Replace:
    """Writes `new` for every `old`."""

    old: str
    new: str

    def cut(self, text: str, at_start: bool) -> list[str]:
        return [text.replace(self.old, self.new)]


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """A chain of stages. Without any, the text is one piece."""

    stages: tuple[Stage, ...] = ()

    def cut(self, text: str, at_start: bool = True) -> Iterable[str]:
        """Cut `text`, which begins the whole text if `at_start`; some pieces may be empty."""
        pieces = [text]
        for stage in self.stages:
            if len(pieces) == 1:
                pieces = stage.cut(pieces[0], at_start)
            else:
                pieces = [
                    part
                    for index, piece in enumerate(pieces)
                    for part in stage.cut(piece, at_start and index == 0)
                ]
        return pieces


UNCUT = PreTokenizer()

Segments = list[tuple[str, bool]]


def _isolated(segments: Segments) -> list[str]:
    return [text for text, _ in segments]


def _removed(segments: Segments) -> list[str]:
    # The first piece begins where the text begins, if only with nothing.
    first = [""] if segments and segments[0][1] else []
    return first + [text for text, matched in segments if not matched]


def _merged_with_previous(segments: Segments) -> list[str]:
    pieces: list[str] = []
    after_match = False
    for text, matched in segments:
        if matched and not after_match and pieces:
            pieces[-1] += text
        else:
            pieces.append(text)
        after_match = matched
    return pieces


def _merged_with_next(segments: Segments) -> list[str]:
    pieces: list[str] = []
    before_match = False
    for text, matched in reversed(segments):
        if matched and not before_match and pieces:
            pieces[-1] = text + pieces[-1]
        else:
            pieces.append(text)
        before_match = matched
    return pieces[::-1]


def _contiguous(segments: Segments) -> list[str]:
    pieces: list[str] = []
    before: bool | None = None
    for text, matched in segments:
        if matched is before:
            pieces[-1] += text
        else:
            pieces.append(text)
        before = matched
    return pieces


_BEHAVIORS = {
    Behavior.ISOLATED: _isolated,
    Behavior.REMOVED: _removed,
    Behavior.MERGED_WITH_PREVIOUS: _merged_with_previous,
    Behavior.MERGED_WITH_NEXT: _merged_with_next,
    Behavior.CONTIGUOUS: _contiguous,
}
