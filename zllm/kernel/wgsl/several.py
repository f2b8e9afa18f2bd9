"""A kernel of one bank made one of several: WGSL has no way to choose a buffer at run time."""

from __future__ import annotations

import re
from collections.abc import Sequence

FUNCTION = re.compile(r"^fn (\w+)\((.*?)\)(?: -> [^\n]*)? \{\n.*?^\}$", re.M | re.S)
PARAMETER = re.compile(r"(\w+): ")
BUFFER = re.compile(r"^(@group\(0\) @binding\()0(\) var<storage, read> w: .*)$", re.M)
FIRST = re.compile(r"^override BANK_FIRST: .*$", re.M)


def several(text: str, root: str, bindings: Sequence[int]) -> str:
    """The kernel `text`, reading the bank that its function `root` is told by its first argument.

    The text has a buffer `w` and `override BANK_FIRST: u32`, the first expert in it. Of these and
    of the functions that `root` reaches them by there is one for each of the `bindings`, with `_i`
    behind the name; `root` calls the last one whose BANK_FIRST_i is not above the argument.
    """
    bodies = {found[1]: found[0] for found in FUNCTION.finditer(text)}
    names = _reaching(bodies, root)
    word = re.compile(rf"(?<![.\w])({'|'.join(names)})\b")
    numbers = range(len(bindings))

    def copies(found: re.Match[str]) -> str:
        return "\n\n".join(word.sub(rf"\1_{i}", found[0]) for i in numbers)

    def function(found: re.Match[str]) -> str:
        if found[1] not in names:
            return found[0]
        return copies(found) + (_choice(found, bindings) if found[1] == root else "")

    def buffers(found: re.Match[str]) -> str:
        lines = (f"{found[1]}{binding}{found[2]}" for binding in bindings)
        return "\n".join(word.sub(rf"\1_{i}", line) for i, line in enumerate(lines))

    return FIRST.sub(copies, BUFFER.sub(buffers, FUNCTION.sub(function, text)))


def _reaching(bodies: dict[str, str], root: str) -> list[str]:
    names = ["w", "BANK_FIRST"]
    while True:
        called = "|".join(name for name in names if name != root)
        calls = re.compile(rf"(?<![.\w])({called})\b")
        more = [name for name in bodies if name not in names and calls.search(bodies[name])]
        if not more:
            return names
        names += more


def _choice(found: re.Match[str], bindings: Sequence[int]) -> str:
    head = found[0].split("{\n")[0]
    arguments = PARAMETER.findall(found[2])
    value = "return " if "->" in head else ""
    lines = [f"\n\n{head}{{"]
    for i in reversed(range(len(bindings))):
        call = f"{value}{found[1]}_{i}({', '.join(arguments)});"
        if i:
            leave = "" if value else " return;"
            lines.append(f"    if ({arguments[0]} >= BANK_FIRST_{i}) {{ {call}{leave} }}")
        else:
            lines.append(f"    {call}")
    return "\n".join([*lines, "}"])
