r"""Translate the regular expressions of tokenizer files to Python's `re`.

Tokenizer files write for Oniguruma. `re` knows no `\p{...}`, and its own `\s` and `\d` follow other
rules, so every class becomes explicit code-point ranges of one fixed Unicode version. What has no
exact translation is refused by name.
Source: Oniguruma's doc/RE; the patterns of GPT-2, Llama 3, Qwen2 and o200k.
"""

from __future__ import annotations

import re
from functools import cache

from zllm.text.errors import TokenizerError
from zllm.text.unicode_ranges import RANGES

# Unicode White_Space, which Oniguruma's \s means. Python's \s adds U+001C to U+001F.
WHITE_SPACE = "9-D 20 85 A0 1680 2000-200A 2028-2029 202F 205F 3000"
WHITE_SPACE_CHARACTERS = frozenset(
    chr(code)
    for span in WHITE_SPACE.split()
    for code in range(int(span.split("-")[0], 16), int(span.split("-")[-1], 16) + 1)
)

_LETTER_ESCAPES = frozenset("rntfv")
_GROUP_HEAD = re.compile(r"\((?:\?:|\?i:|\?=|\?!|\?<=|\?<!|\?>)")
_PROPERTY = re.compile(r"\\([pP])\{(\^?)(\w+)\}")
_REPEAT = re.compile(r"\{\d*(?:,\d*)?\}")


@cache
def class_body(name: str) -> str:
    """Code points of a general category, or of `s` for white space, as the inside of `[...]`."""
    spans = WHITE_SPACE if name == "s" else RANGES.get(name)
    if spans is None:
        raise TokenizerError(
            rf"pre-tokenizer pattern uses \p{{{name}}}; supported: {', '.join(sorted(RANGES))}"
        )
    return "".join(
        "-".join(rf"\U{int(code, 16):08x}" for code in span.split("-")) for span in spans.split()
    )


@cache
def compile_pattern(source: str) -> re.Pattern[str]:
    """Compile an Oniguruma pattern without capturing groups.

    Raises TokenizerError naming the construct that is not supported.
    """
    try:
        return re.compile(translate(source))
    except re.error as error:
        raise TokenizerError(f"pre-tokenizer pattern {source!r} is not valid: {error}") from error


def translate(source: str) -> str:
    """Rewrite an Oniguruma pattern for `re`."""
    out: list[str] = []
    position = 0
    while position < len(source):
        piece, position = _element(source, position)
        out.append(piece)
    return "".join(out)


def _element(source: str, position: int) -> tuple[str, int]:
    char = source[position]
    if char == "\\":
        body, negated, position = _escape(source, position)
        if body is None:
            return source[position - 2 : position], position
        return f"[{'^' if negated else ''}{body}]", position
    if char == "[":
        return _bracket(source, position)
    if char == "(":
        head = _GROUP_HEAD.match(source, position)
        if head is None:
            raise _unsupported(
                source, position, "a group other than (?: (?i: (?= (?! (?<= (?<! (?>"
            )
        return head.group(), head.end()
    if char == "{":
        repeat = _REPEAT.match(source, position)
        if repeat is None or source[repeat.end() : repeat.end() + 1] == "+":
            raise _unsupported(source, position, "this repetition")
        return repeat.group(), repeat.end()
    # Oniguruma's ^ and $ work at every line; with re.MULTILINE absent they would differ.
    if char in "^$.":
        raise _unsupported(source, position, f"{char!r} outside brackets")
    return char, position + 1


def _escape(source: str, position: int) -> tuple[str | None, bool, int]:
    """Read an escape: (class body or None for a literal, negated?, position after it)."""
    found = _PROPERTY.match(source, position)
    if found is not None:
        kind, caret, name = found.groups()
        return class_body(name), (kind == "P") != (caret == "^"), found.end()
    letter = source[position + 1 : position + 2]
    if letter in ("s", "S", "d", "D"):
        return class_body("s" if letter in "sS" else "Nd"), letter.isupper(), position + 2
    if not letter or (letter.isalnum() and letter not in _LETTER_ESCAPES):
        raise _unsupported(source, position, f"the escape \\{letter}")
    return None, False, position + 2


def _bracket(source: str, position: int) -> tuple[str, int]:
    start = position
    position += 1
    out = ["["]
    if source.startswith("^", position):
        out.append("^")
        position += 1
    while position < len(source) and source[position] != "]":
        if source[position] == "[" or source.startswith("&&", position):
            raise _unsupported(source, position, "a set operation in brackets")
        if source[position] != "\\":
            out.append(source[position])
            position += 1
            continue
        body, negated, position = _escape(source, position)
        if negated:
            raise _unsupported(source, position, "a negated class in brackets")
        out.append(source[position - 2 : position] if body is None else body)
    if position >= len(source) or out[-1] in ("[", "^"):
        raise _unsupported(source, start, "brackets without an end or without content")
    return "".join(out) + "]", position + 1


def _unsupported(source: str, position: int, what: str) -> TokenizerError:
    return TokenizerError(
        f"pre-tokenizer pattern is not supported: {what} at character {position} of {source!r}"
    )
