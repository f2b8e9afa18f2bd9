"""Settings found by a search on one adapter, kept in a JSON file.

{"version": 1, "adapters": {adapter: [{"format": …, "tokens": …, "few": {…}}, …]}}
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, replace
from itertools import product, starmap
from pathlib import Path
from typing import Any

from zllm.backend.webgpu.tuning import Choice, Few, Tuning
from zllm.errors import BackendError, notice

VERSION = 1
FILE = "tuning.json"
# What is tried. Lanes of a team share a workgroup.
STAGED = tuple(starmap(Few, product((64, 128, 256), (2, 4, 8), (8, 16, 32))))
PAIRS = tuple(starmap(Few, product((64, 128, 256), (2, 4), (16, 32), ("pairs",))))
SETTINGS = (*STAGED, *PAIRS)


def with_found(tuning: Tuning, path: Path, adapter: str) -> Tuning:
    """The device's own table, what was found for the adapter before it."""
    return replace(tuning, choices=(*_read(path).get(adapter, ()), *tuning.choices))


def keep(path: Path, adapter: str, found: tuple[Choice, ...]) -> None:
    """In place of what was found for the same formats and tokens. BackendError if it cannot."""
    adapters = _read(path)
    places = {(choice.format, choice.tokens) for choice in found}
    others = (c for c in adapters.get(adapter, ()) if (c.format, c.tokens) not in places)
    # The first that fits is taken: fewer tokens before more.
    adapters[adapter] = tuple(sorted((*others, *found), key=lambda c: (c.format, c.tokens)))
    table = {name: [asdict(choice) for choice in kept] for name, kept in adapters.items()}
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps({"version": VERSION, "adapters": table}, indent=1))
        temporary.replace(path)
    except OSError as error:
        raise BackendError(
            f"cannot write {path}: {error.strerror or error}; "
            "set ZLLM_CACHE to a folder that can be written"
        ) from None


def _read(path: Path) -> dict[str, tuple[Choice, ...]]:
    """By adapter; empty, with a notice, if the file is damaged."""
    try:
        document: Any = json.loads(path.read_bytes())
        if document["version"] != VERSION:
            return {}
        adapters = document["adapters"]
        return {str(name): tuple(map(_choice, kept)) for name, kept in adapters.items()}
    except OSError:
        return {}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        notice(f"{path} is damaged and ignored: run `zllm bench --tune` again")
        return {}


def _choice(stored: Any) -> Choice:
    """ValueError, TypeError or KeyError unless it is one that the search could have found."""
    few = Few(**stored["few"])
    format, tokens = stored["format"], stored["tokens"]
    if few not in SETTINGS or type(format) is not str or type(tokens) is not int:
        raise ValueError(f"unknown setting {stored}")
    return Choice(format, tokens, few)
