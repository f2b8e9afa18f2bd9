"""WGSL sources: plain files, joined by name. A kernel is a few of them one after another."""

from __future__ import annotations

from functools import cache
from importlib import resources


@cache
def compose(*names: str) -> str:
    """The text of `<name>.wgsl` of each name, in order."""
    folder = resources.files(__package__)
    return "\n".join((folder / f"{name}.wgsl").read_text(encoding="utf-8") for name in names)
