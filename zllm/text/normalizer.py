"""Rewrite text before it is cut into pieces.

Sources: the `normalizer` of tokenizer.json; llama.cpp's space prefix and escape; for normalization
forms Unicode Standard Annex 15 and section 3.11, canonical ordering.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from zllm.text.errors import TokenizerError
from zllm.text.pattern import WHITE_SPACE_CHARACTERS, compile_pattern

Form = Literal["NFC", "NFD", "NFKC", "NFKD"]
_FORMS: dict[str, Form] = {"NFC": "NFC", "NFD": "NFD", "NFKC": "NFKC", "NFKD": "NFKD"}
_WHITE_SPACE = "".join(WHITE_SPACE_CHARACTERS)


@dataclass(frozen=True, slots=True)
class Normalizer:
    """Rewrites in order. Without any, text stays as it is."""

    steps: tuple[Callable[[str], str], ...] = ()

    def __call__(self, text: str) -> str:
        for step in self.steps:
            text = step(text)
        return text


UNCHANGED = Normalizer()


def prefixed(prefix: str) -> Callable[[str], str]:
    """Puts `prefix` before any text that is not empty."""
    return lambda text: prefix + text if text else text


def replaced(old: str, new: str) -> Callable[[str], str]:
    """Replaces every `old`."""
    return lambda text: text.replace(old, new)


def normalized(text: str, form: Form) -> str:
    """Unicode normalization in linear time.

    Python orders combining marks by insertion, which is quadratic in the length of a run of marks.
    Long runs are put in order first, which canonical equivalence allows.
    """
    if text.isascii():
        return text
    # Stream-safe text (Annex 15) has at most 30 marks in a row.
    ordered = compile_pattern(r"\p{M}{31,}").sub(_in_canonical_order, text)
    return unicodedata.normalize(form, ordered)


def _in_canonical_order(run: re.Match[str]) -> str:
    ordered: list[str] = []
    marks: list[str] = []
    for character in "".join(unicodedata.normalize("NFD", mark) for mark in run.group()):
        if unicodedata.combining(character) == 0:
            ordered += sorted(marks, key=unicodedata.combining)
            ordered.append(character)
            marks.clear()
        else:
            marks.append(character)
    return "".join(ordered + sorted(marks, key=unicodedata.combining))


def from_hf_component(component: Mapping[str, Any] | None) -> Normalizer:
    """The `normalizer` of tokenizer.json. TokenizerError naming a kind that is not supported."""
    return Normalizer(tuple(_steps(component)))


def _steps(component: Mapping[str, Any] | None) -> list[Callable[[str], str]]:
    if component is None:
        return []
    kind = component.get("type")
    if kind == "Sequence":
        return [step for part in component.get("normalizers", ()) for step in _steps(part)]
    if kind in _FORMS:
        form = _FORMS[kind]
        return [lambda text: normalized(text, form)]
    if kind == "Lowercase":
        return [_lowercase]
    if kind == "Prepend":
        return [prefixed(component["prepend"])]
    if kind == "Replace":
        return [_replace(component)]
    if kind == "Strip":
        return [_strip(component)]
    raise TokenizerError(
        f"tokenizer.json: normalizer {kind!r} is not supported; supported: "
        f"{', '.join(_FORMS)}, Lowercase, Prepend, Replace, Sequence, Strip"
    )


def _lowercase(text: str) -> str:
    # Letter by letter: in a word Python would write a final sigma, which the peer does not.
    return "".join(map(str.lower, text)) if "\u03a3" in text else text.lower()


def _replace(component: Mapping[str, Any]) -> Callable[[str], str]:
    pattern, content = component["pattern"], component["content"]
    if "String" in pattern:
        return replaced(pattern["String"], content)
    compiled = compile_pattern(pattern["Regex"])
    return lambda text: compiled.sub(lambda _: content, text)


def _strip(component: Mapping[str, Any]) -> Callable[[str], str]:
    left, right = component["strip_left"], component["strip_right"]

    def strip(text: str) -> str:
        text = text.lstrip(_WHITE_SPACE) if left else text
        return text.rstrip(_WHITE_SPACE) if right else text

    return strip
