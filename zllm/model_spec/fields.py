"""Typed reading of foreign configs: ValueError names the field, got and expected.

A field that is null counts as missing; without a default, a missing field is an error.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

Fields = Mapping[str, Any]


def size(config: Fields, key: str, default: int | None = None) -> int:
    """A positive integer."""
    found = _present(config, key, default)
    if type(found) is not int or found <= 0:
        raise ValueError(f"{key}: got {found!r}, expected a positive integer")
    return found


def count(config: Fields, key: str, default: int | None = None) -> int:
    """An integer that may be 0."""
    found = _present(config, key, default)
    if type(found) is not int or found < 0:
        raise ValueError(f"{key}: got {found!r}, expected an integer of at least 0")
    return found


def at_most(config: Fields, key: str, most: int, default: int | None = None) -> int:
    """A positive integer up to `most`."""
    found = size(config, key, default)
    if found > most:
        raise ValueError(f"{key}: got {found}, expected at most {most}")
    return found


def positive(config: Fields, key: str, default: float | None = None) -> float:
    """A positive finite number."""
    found = _present(config, key, default)
    if type(found) not in (int, float) or not 0 < found <= sys.float_info.max:
        raise ValueError(f"{key}: got {found!r}, expected a positive number")
    return float(found)


def flag(config: Fields, key: str, default: bool) -> bool:
    found = _present(config, key, default)
    if type(found) is not bool:
        raise ValueError(f"{key}: got {found!r}, expected true or false")
    return found


def choice(config: Fields, key: str, known: tuple[str, ...], default: str | None = None) -> str:
    """One of the known words."""
    found = _present(config, key, default)
    if type(found) is not str or found not in known:
        raise ValueError(f"{key}: got {found!r}, supported: {', '.join(known)}")
    return found


def section(config: Fields, key: str) -> Fields:
    """A nested object; empty if missing."""
    found = _present(config, key, {})
    if not isinstance(found, Mapping):
        raise ValueError(f"{key}: got {found!r}, expected an object")
    return found


def _present(config: Fields, key: str, default: Any) -> Any:
    found = config.get(key)
    if found is None:
        found = default
    if found is None:
        raise ValueError(f"{key}: missing")
    return found
