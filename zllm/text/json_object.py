"""A JSON object that knows its text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


class JsonObject(dict[str, Any]):
    """The arguments of a tool call, for templates of both habits.

    Some read them as an object, others print them or add them to a text: there it is the JSON text
    that the call came with.
    """

    def __init__(self, value: Mapping[str, Any], text: str | None = None) -> None:
        super().__init__(value)
        self._text = json.dumps(value, ensure_ascii=False) if text is None else text

    def __str__(self) -> str:
        return self._text

    def __add__(self, other: str) -> str:
        return self._text + other

    def __radd__(self, other: str) -> str:
        return other + self._text
