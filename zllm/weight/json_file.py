"""Bounded reading of JSON text out of byte sources."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from zllm.errors import LoadError
from zllm.weight.byte_source import ByteSource, FileSource

MAX_JSON_BYTES = 1 << 24
# Vocabularies of 256k entries with their merges reach 35 MB.
MAX_TOKENIZER_BYTES = 1 << 27


def read_text(source: ByteSource, limit: int = MAX_JSON_BYTES) -> str:
    """The whole source as UTF-8 text. LoadError names the source."""
    if source.size_bytes > limit:
        raise LoadError(f"{source.name}: {source.size_bytes} bytes, at most {limit} are allowed")
    try:
        return str(source.read(0, source.size_bytes), "utf-8-sig")
    except UnicodeDecodeError as error:
        raise LoadError(f"{source.name}: not UTF-8 text: {error.reason}") from None


def parse_object(text: str, name: str, *, unique_keys: bool = False) -> dict[str, Any]:
    """The JSON object in `text`. LoadError if it is no JSON or no object.

    With `unique_keys` also if any object in it repeats a key: two readers could see two files.
    """
    try:
        found = json.loads(text, object_pairs_hook=_without_repeats if unique_keys else None)
    except (ValueError, RecursionError) as error:
        raise LoadError(f"{name}: not valid JSON: {error}") from None
    if not isinstance(found, dict):
        raise LoadError(f"{name}: expected a JSON object, got {type(found).__name__}")
    return found


def read_object(
    path: Path, limit: int = MAX_JSON_BYTES, *, unique_keys: bool = False
) -> dict[str, Any]:
    """The JSON object in a file. LoadError names the file."""
    return parse_object(_file_text(path, limit), str(path), unique_keys=unique_keys)


def read_optional_object(path: Path, limit: int = MAX_JSON_BYTES) -> dict[str, Any] | None:
    """The JSON object in a file, or None if there is no such file."""
    return read_object(path, limit) if path.exists() else None


def read_optional_text(path: Path) -> str | None:
    """The text of a file, or None if there is no such file."""
    return _file_text(path, MAX_JSON_BYTES) if path.exists() else None


def _file_text(path: Path, limit: int) -> str:
    source = FileSource(path, use_mmap=False)
    try:
        return read_text(source, limit)
    finally:
        source.close()


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        counts = Counter(key for key, _ in pairs)
        repeated = max(counts, key=lambda key: counts[key])
        raise ValueError(f"the key {repeated!r} appears twice")
    return found
