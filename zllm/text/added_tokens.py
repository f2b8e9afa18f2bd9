"""Added tokens: whole strings that are found in text before any pre-split.

Source: Hugging Face tokenizers' AddedVocabulary; llama.cpp's control and user-defined tokens.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from zllm.text.errors import TokenizerError
from zllm.text.pattern import WHITE_SPACE_CHARACTERS, compile_pattern


@dataclass(frozen=True, slots=True)
class AddedToken:
    """One added token. `control` tokens are found only where the caller asks for them."""

    id: int
    content: str
    control: bool
    normalized: bool = False
    left_strip: bool = False
    right_strip: bool = False
    single_word: bool = False


class AddedTokenMatcher:
    """Finds added tokens: leftmost first, the longest among those that start together."""

    def __init__(self, tokens: Iterable[AddedToken]) -> None:
        self._tokens = {token.content: token for token in tokens if token.content}
        self._pattern = _alternatives(self._tokens) if self._tokens else None

    def split(self, text: str) -> Iterator[tuple[str, int | None]]:
        """Yield (plain text, None) and (matched text, token id) in order; they join to `text`."""
        if self._pattern is None:
            yield text, None
            return
        done = 0
        for match in self._pattern.finditer(text):
            token = self._tokens[match.group()]
            start, end = match.span()
            if token.single_word and not _stands_alone(text, start, end):
                continue
            if token.left_strip:
                while start > done and text[start - 1] in WHITE_SPACE_CHARACTERS:
                    start -= 1
            if token.right_strip:
                while end < len(text) and text[end] in WHITE_SPACE_CHARACTERS:
                    end += 1
            start = max(start, done)
            if start > done:
                yield text[done:start], None
            yield text[start:end], token.id
            done = end
        if done < len(text):
            yield text[done:], None


def _stands_alone(text: str, start: int, end: int) -> bool:
    word = compile_pattern(r"[\p{L}\p{M}\p{Nd}_]")
    return not (start > 0 and word.match(text, start - 1)) and not word.match(text, end)


def _alternatives(contents: Mapping[str, object]) -> re.Pattern[str]:
    """One pattern that shares prefixes, so its time per character does not grow with the tokens."""
    try:
        return re.compile(_prefix_tree(sorted(contents)))
    except RecursionError as error:
        raise TokenizerError("added tokens: too many are prefixes of one another") from error


def _prefix_tree(contents: list[str]) -> str:
    """Pattern of sorted distinct strings; an empty first one makes the rest optional."""
    optional = contents[0] == ""
    branches: list[str] = []
    rest = contents[1:] if optional else contents
    while rest:
        group = [content for content in rest if content[0] == rest[0][0]]
        rest = rest[len(group) :]
        shared = _shared_prefix(group[0], group[-1])
        tails = [content[len(shared) :] for content in group]
        branches.append(re.escape(shared) + (_prefix_tree(tails) if len(group) > 1 else ""))
    return f"(?:{'|'.join(branches)})" + ("?" if optional else "")


def _shared_prefix(first: str, last: str) -> str:
    length = 0
    while length < min(len(first), len(last)) and first[length] == last[length]:
        length += 1
    return first[:length]
