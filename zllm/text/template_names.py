"""Chat templates by name, in the forms that files give them.

Source: Hugging Face transformers; `chat_template` is a text, a list of {name, template} or a table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zllm.text.errors import TemplateError


def named_templates(value: Any) -> dict[str, str]:
    """Template sources by name; a single one is "default". TemplateError for any other form."""
    if value is None:
        return {}
    if isinstance(value, str):
        return {"default": value}
    if isinstance(value, Mapping):
        return {name: _source(name, source) for name, source in value.items()}
    if isinstance(value, list) and all(isinstance(entry, Mapping) for entry in value):
        return {
            entry.get("name"): _source(entry.get("name"), entry.get("template")) for entry in value
        }
    raise _damaged(value)


def _source(name: Any, source: Any) -> str:
    if not isinstance(name, str) or not isinstance(source, str):
        raise _damaged({"name": name, "template": source})
    return source


def _damaged(value: Any) -> TemplateError:
    return TemplateError(
        f"chat_template is {value!r:.80}; expected a text, a list of objects with `name` and "
        "`template`, or an object of texts by name"
    )
