r"""Translate the regular expressions of tokenizer files to Python's `re`.

Tokenizer files write for Oniguruma. `re` knows no `\p{...}`, and its own `\s` and `\d` follow other
rules, so every class becomes explicit code-point ranges of one fixed Unicode version. What has no
exact translation is refused by name.
Source: Oniguruma's doc/RE; the patterns of pre_split_rules.
"""

from __future__ import annotations

import re
from functools import cache

from zllm.text.errors import TokenizerError
from zllm.text.unicode_ranges import RANGES
from zllm.text.unicode_scripts import SCRIPTS

# Unicode White_Space, which Oniguruma's \s means. Python's \s adds U+001C to U+001F.
WHITE_SPACE = "9-D 20 85 A0 1680 2000-200A 2028-2029 202F 205F 3000"
WHITE_SPACE_CHARACTERS = frozenset(
    chr(code)
    for span in WHITE_SPACE.split()
    for code in range(int(span.split("-")[0], 16), int(span.split("-")[-1], 16) + 1)
)

# Patterns that take quadratic time on long runs, and how to find the same matches in linear time:
# where a run of white space does not reach the end of a line, neither does its remainder.
_LINEAR = {r"\s+$": r"(?<![{white_space}])[{white_space}]+(?=\n|\Z)"}

_LETTER_ESCAPES = frozenset("rntfv")
_GROUP_HEAD = re.compile(r"\((?:\?:|\?i:|\?=|\?!|\?<=|\?<!|\?>)")
_PROPERTY = re.compile(r"\\([pP])\{(\^?)(\w+)\}")
_REPEAT = re.compile(r"\{\d*(?:,\d*)?\}")


def characters(spans: str) -> str:
    """Inside of brackets for hexadecimal code points and inclusive ranges, letters not escaped."""
    return "".join(
        "-".join(chr(int(code, 16)) for code in span.split("-")) for span in spans.split()
    )


@cache
def class_body(name: str) -> str:
    """Code points of a general category or script, or of `s` for white space, for `[...]`."""
    spans = WHITE_SPACE if name == "s" else RANGES.get(name) or SCRIPTS.get(name)
    if spans is None:
        known = ", ".join((*sorted(RANGES), *SCRIPTS))
        raise TokenizerError(rf"pre-tokenizer pattern uses \p{{{name}}}; supported: {known}")
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
    if source in _LINEAR:
        return _LINEAR[source].format(white_space=class_body("s"))
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
    """Brackets; `[a&&[^b]]` becomes a look-ahead that rules out b, then [a]."""
    body, position = _bracket_body(source, position)
    if not source.startswith("&&", position):
        return body, position + 1
    if not source.startswith("&&[^", position):
        raise _unsupported(source, position, "a set operation other than &&[^...]")
    without, position = _bracket_body(source, position + 2)
    if not source.startswith("]]", position):
        raise _unsupported(source, position, "a set operation other than &&[^...]")
    return f"(?:(?![{without[2:]}){body})", position + 2


def _bracket_body(source: str, position: int) -> tuple[str, int]:
    """Brackets up to where `]` or `&&` stands: (translated with a closing bracket, position)."""
    start = position
    position += 1
    out = ["["]
    if source.startswith("^", position):
        out.append("^")
        position += 1
    while position < len(source) and source[position] != "]":
        if source.startswith("&&", position):
            break
        if source[position] == "[":
            raise _unsupported(source, position, "brackets in brackets")
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
    return "".join(out) + "]", position


def _unsupported(source: str, position: int, what: str) -> TokenizerError:
    return TokenizerError(
        f"pre-tokenizer pattern is not supported: {what} at character {position} of {source!r}"
    )
