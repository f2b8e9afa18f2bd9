"""Keeps text from outside from becoming control tokens when a chat template is rendered.

Before rendering, what could become a marker is replaced in each outside string by private-use
characters that occur nowhere in the input; after rendering and after the template's own control
tokens are found, they are put back. One character stands for one literal, so a template that cuts
strings cannot cut a stand-in.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from zllm.errors import RequestError
from zllm.text.json_object import JsonObject

# Supplementary private-use planes A and B; U+xFFFE and U+xFFFF are noncharacters.
_PRIVATE = range(0xF0000, 0x10FFFE)
_PRIVATE_CHARACTERS = re.compile("[\U000f0000-\U0010fffd]")


class MarkerGuard:
    """What must not come from outside: the texts of a tokenizer's control tokens."""

    def __init__(self, markers: Collection[str]) -> None:
        longest_first = sorted(filter(None, markers), key=len, reverse=True)
        self._markers = (
            re.compile("|".join(map(re.escape, longest_first))) if longest_first else None
        )
        self._beginnings = {text[:end] for text in longest_first for end in range(1, len(text))}
        self._endings = {text[start:] for text in longest_first for start in range(1, len(text))}
        self._reach = max(map(len, longest_first), default=0)

    def start(self, *outside: Any) -> Guarding:
        """Begin one rendering of these JSON values."""
        taken: set[str] = set()
        for value in outside:
            for text in _strings(value):
                taken.update(_PRIVATE_CHARACTERS.findall(text))
        return Guarding(self, taken)

    def literals(self, text: str) -> Iterator[tuple[int, int]]:
        """Spans of `text` that need a stand-in, in order, without overlap.

        Whole markers; and where a marker could be completed by what stands beside `text`, its first
        or last character.
        """
        if self._markers is None:
            return
        spans = {match.start(): match.end() for match in self._markers.finditer(text)}
        # Templates trim content, so the edges without white space count too.
        leading = len(text) - len(text.lstrip())
        trailing = len(text.rstrip())
        for start in {0, leading}:
            if not _inside(start, spans) and self._begins_with_ending(text[start:][: self._reach]):
                spans[start] = start + 1
        for end in {trailing, len(text)}:
            if not _inside(end - 1, spans) and self._ends_with_beginning(
                text[:end][-self._reach :]
            ):
                spans[end - 1] = end
        yield from sorted(spans.items())

    def _begins_with_ending(self, text: str) -> bool:
        return any(text[:end] in self._endings for end in range(1, len(text) + 1))

    def _ends_with_beginning(self, text: str) -> bool:
        return any(text[start:] in self._beginnings for start in range(len(text)))


def _inside(at: int, spans: Mapping[int, int]) -> bool:
    return any(start <= at < end for start, end in spans.items())


@dataclass(slots=True)
class Guarding:
    """The stand-ins of one rendering."""

    guard: MarkerGuard
    taken: set[str]
    stand_ins: dict[str, str] = field(default_factory=dict)
    # A random start: a template cannot be fed text that turns into a stand-in.
    _next: int = field(default_factory=lambda: secrets.randbelow(len(_PRIVATE)))

    def protect(self, value: Any) -> Any:
        """A copy of a JSON value whose strings, keys included, cannot become markers."""
        if isinstance(value, str):
            return self._protect_text(value)
        if isinstance(value, JsonObject):
            return JsonObject(self.protect(dict(value)), self.protect(str(value)))
        if isinstance(value, Mapping):
            return {self.protect(key): self.protect(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.protect(item) for item in value]
        return value

    def restorer(self) -> Mapping[int, str]:
        """The table for str.translate that puts the literals back."""
        return {ord(character): literal for literal, character in self.stand_ins.items()}

    def _protect_text(self, text: str) -> str:
        parts: list[str] = []
        done = 0
        for start, end in self.guard.literals(text):
            parts += (text[done:start], self._stand_in(text[start:end]))
            done = end
        return "".join((*parts, text[done:])) if parts else text

    def _stand_in(self, literal: str) -> str:
        known = self.stand_ins.get(literal)
        if known is not None:
            return known
        for _ in _PRIVATE:
            character = chr(_PRIVATE[self._next])
            self._next = (self._next + 1) % len(_PRIVATE)
            if character not in self.taken:
                self.taken.add(character)
                self.stand_ins[literal] = character
                return character
        raise RequestError("messages use every private-use character; expected at least one free")


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _strings(key)
            yield from _strings(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _strings(item)
