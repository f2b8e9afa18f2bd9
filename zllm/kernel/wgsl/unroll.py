"""Straight-line text from loops that a compiler must not see.

Local arrays that a loop indexes often end in memory, whatever their size: naga and Tint put guards
into loops and indices, and compilers then unroll too late.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

OPEN = re.compile(r"\s*// unroll (\w) (\w+)$")
CLOSE = re.compile(r"\s*// end$")


def unroll(text: str, sizes: Mapping[str, int]) -> str:
    """The lines between `// unroll i SIZE` and its `// end`, once for each i below SIZE.

    `$i` in them is the number. SIZE is a number or a name in `sizes`.
    """
    return _text(text, tuple(sizes.items()))


@cache
def _text(text: str, sizes: tuple[tuple[str, int], ...]) -> str:
    return "\n".join(_unrolled(text.split("\n"), dict(sizes)))


def _unrolled(lines: list[str], sizes: Mapping[str, int]) -> list[str]:
    out: list[str] = []
    at = 0
    while at < len(lines):
        opened = OPEN.match(lines[at])
        if not opened:
            out.append(lines[at])
            at += 1
            continue
        end = _end(lines, at)
        name, size = opened.groups()
        for i in range(int(size) if size.isdigit() else sizes[size]):
            body = [line.replace(f"${name}", str(i)) for line in lines[at + 1 : end]]
            out += _unrolled(body, sizes)
        at = end + 1
    return out


def _end(lines: list[str], at: int) -> int:
    depth = 0
    for i in range(at, len(lines)):
        depth += bool(OPEN.match(lines[i])) - bool(CLOSE.match(lines[i]))
        if not depth:
            return i
    raise ValueError(f"{lines[at].strip()!r} has no '// end'")
