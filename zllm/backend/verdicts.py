"""What was found out about kernels on one adapter, kept in a JSON file.

{"version": 1, "adapters": {adapter: {SHA-256 of op and WGSL: "right" | "wrong" | "unreached"}}}
"""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from zllm.errors import notice

RIGHT, WRONG, UNREACHED = "right", "wrong", "unreached"  # the last: no small case leads there
VERSION = 1


@cache
def digest(op: str, wgsl: str) -> str:
    return hashlib.sha256(f"{op}\n{wgsl}".encode()).hexdigest()


class Verdicts:
    """`path` None: kept in memory alone. A damaged file is ignored, with a notice."""

    def __init__(self, path: Path | None, adapter: str) -> None:
        self._path = path
        self._adapter = adapter
        self.of: dict[str, str] = read_verdicts(path).get(adapter, {}) if path else {}

    def add(self, found: dict[str, str]) -> None:
        self.of |= found
        if self._path is None or not found:
            return
        adapters = read_verdicts(self._path)  # another process may have written since
        adapters[self._adapter] = adapters.get(self._adapter, {}) | self.of
        _write(self._path, {"version": VERSION, "adapters": adapters})


def read_verdicts(path: Path) -> dict[str, dict[str, str]]:
    """By adapter and kernel; empty, with a notice, if the file is damaged."""
    try:
        document: Any = json.loads(path.read_bytes())
        if document["version"] != VERSION:
            return {}
        adapters: dict[str, dict[str, str]] = document["adapters"]
        known = {RIGHT, WRONG, UNREACHED}
        if not all(set(verdicts.values()) <= known for verdicts in adapters.values()):
            raise ValueError("unknown verdicts")
        return adapters
    except OSError:
        return {}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        notice(f"{path} is damaged and ignored: kernels are checked again")
        return {}


def _write(path: Path, document: Any) -> None:
    """Whole or not at all; where nothing can be written kernels are checked at every start."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(document, indent=1))
        temporary.replace(path)
    except OSError:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
