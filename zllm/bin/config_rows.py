"""A model's config as rows of text, whatever its architecture calls its fields."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import MISSING
from typing import Any

SHOWN_WHOLE = 4  # items of a list; a longer one is counted

Row = tuple[str, str]


def config_rows(config: Any) -> list[Row]:
    """`sizes` and `switches` of a frozen dataclass, then a row for each section inside it."""
    plain, sections = _split({f.name: getattr(config, f.name) for f in dataclasses.fields(config)})
    switches = {name: value for name, value in plain.items() if isinstance(value, bool | str)}
    sizes = {name: value for name, value in plain.items() if name not in switches}
    rows = [("sizes", pairs(sizes)), ("switches", pairs(switches)), *_section_rows(sections)]
    return [row for row in rows if row[1]]


def _section_rows(sections: Mapping[str, Any]) -> Iterator[Row]:
    for name, section in sections.items():
        plain, inner = _split(dict(_unusual(section)))
        yield name, pairs(plain)
        yield from _section_rows(inner)


def _split(values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Plain values, and sections: dataclasses."""
    sections = {name: value for name, value in values.items() if dataclasses.is_dataclass(value)}
    return {name: value for name, value in values.items() if name not in sections}, sections


def _unusual(section: Any) -> Iterator[tuple[str, Any]]:
    """The fields without a default, and those that differ from it."""
    for field in dataclasses.fields(section):
        value = getattr(section, field.name)
        if field.default is MISSING or value != field.default:
            yield field.name, value


def pairs(values: Mapping[str, Any]) -> str:
    """`name value, …`; what is None or empty is left out."""
    shown = {name: value for name, value in values.items() if value not in ((), None)}
    return ", ".join(f"{name} {_value(value)}" for name, value in shown.items())


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple | list):
        if len(value) > SHOWN_WHOLE or any(map(dataclasses.is_dataclass, value)):
            return f"of {len(value)}"
        return "/".join(map(_value, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
