"""Added tokens: whole strings that are found in text before any pre-split.

Source: Hugging Face tokenizers' AddedVocabulary; llama.cpp's control and user-defined tokens.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from zllm.text.errors import TokenizerError
from zllm.text.pattern import WHITE_SPACE_CHARACTERS, characters, compile_pattern


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
    """Finds added tokens: leftmost first, the longest among those that start together.

    A token is looked for by its content as `spelled` rewrites it.
    """

    def __init__(
        self, tokens: Iterable[AddedToken], spelled: Callable[[str], str] = lambda text: text
    ) -> None:
        self._tokens = {spelled(token.content): token for token in tokens if token.content}

    @cached_property
    def _pattern(self) -> re.Pattern[str] | None:
        contents = [content for content in self._tokens if content]
        return _alternatives(contents) if contents else None

    def split(self, text: str, *, special: bool) -> Iterator[tuple[str, int | None]]:
        """Yield (plain text, None) and (matched text, token id) in order; they join to `text`.

        Without `special` the text of a control token is plain text, and so is what lies inside it.
        """
        if self._pattern is None:
            yield text, None
            return
        done = 0
        for match in self._pattern.finditer(text):
            token = self._tokens[match.group()]
            start, end = match.span()
            if token.control and not special:
                continue
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


# What \w means to Rust's regex: letters, marks, digits, and besides alphabetic numbers and symbols,
# connecting punctuation and joiners. Source: Unicode Technical Standard 18, annex C.
_WORD_EXTRAS = characters(
    "5F 200C-200D 203F-2040 2054 2160-2182 2185-2188 24B6-24E9 3007 3021-3029 3038-303A "
    "A6E6-A6EF FE33-FE34 FE4D-FE4F FF3F 10140-10174 10341 1034A 103D1-103D5 12400-1246E "
    "16EE-16F0 1F130-1F149 1F150-1F169 1F170-1F189"
)
_WORD = rf"[\p{{L}}\p{{M}}\p{{Nd}}{_WORD_EXTRAS}]"


def _stands_alone(text: str, start: int, end: int) -> bool:
    word = compile_pattern(_WORD)
    return not (start > 0 and word.match(text, start - 1)) and not word.match(text, end)


def _alternatives(contents: Iterable[str]) -> re.Pattern[str]:
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
