"""Unicode normalization in linear time.

Python's `unicodedata.normalize` orders combining marks by insertion, which is quadratic in the
length of a run of marks. Long runs are put in order first, which canonical equivalence allows.
Source: Unicode Standard Annex 15 and section 3.11, canonical ordering.
"""

from __future__ import annotations

import re
import unicodedata

from zllm.text.pattern import compile_pattern


def nfc(text: str) -> str:
    """Normalization Form C of `text`."""
    if text.isascii():
        return text
    # Stream-safe text (Annex 15) has at most 30 marks in a row.
    ordered = compile_pattern(r"\p{M}{31,}").sub(_in_canonical_order, text)
    return unicodedata.normalize("NFC", ordered)


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
