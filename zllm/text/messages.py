"""Check and normalise chat messages before a template sees them.

Source: OpenAI's Chat Completions message format, which chat templates are written for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from zllm.errors import RequestError
from zllm.text.json_object import JsonObject

# Templates print the role verbatim, so a free role could write any marker.
ROLES = ("system", "user", "assistant", "tool", "developer")


def checked_messages(messages: Any) -> list[dict[str, Any]]:
    """Copies whose content is a string and whose tool arguments are objects.

    Text parts are joined by a newline; content None becomes "". Raises RequestError naming the
    field.
    """
    if not isinstance(messages, list | tuple) or not messages:
        raise RequestError("messages: expected a list with at least one message")
    return [_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


def checked_tools(tools: Any) -> list[dict[str, Any]] | None:
    """The tool definitions, or None where there are none. Raises RequestError naming the field."""
    if tools is None:
        return None
    if not isinstance(tools, list | tuple):
        raise RequestError(f"tools: expected a list, got {_kind(tools)}")
    for index, tool in enumerate(tools):
        if not isinstance(tool, Mapping):
            raise RequestError(f"tools[{index}]: expected an object, got {_kind(tool)}")
    return [dict(tool) for tool in tools] or None


def _message(message: Any, where: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise RequestError(f"{where}: expected an object, got {_kind(message)}")
    role = message.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise RequestError(f"{where}.role: expected one of {', '.join(ROLES)}; got {role!r:.80}")
    calls = message.get("tool_calls")
    if "content" not in message and not calls:
        raise RequestError(f"{where}.content: missing; expected text, a list of text parts or null")
    checked = {**message, "content": _content(message.get("content"), f"{where}.content")}
    if calls is not None:
        checked["tool_calls"] = _tool_calls(calls, f"{where}.tool_calls")
    return checked


def _content(content: Any, where: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list | tuple):
        raise RequestError(
            f"{where}: expected text, a list of text parts or null; got {_kind(content)}"
        )
    return "\n".join(_text_part(part, f"{where}[{index}]") for index, part in enumerate(content))


def _text_part(part: Any, where: str) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind != "text":
        raise RequestError(f"{where}.type: only text parts are supported; got {kind!r:.80}")
    if not isinstance(part.get("text"), str):
        raise RequestError(f"{where}.text: expected text, got {_kind(part.get('text'))}")
    text: str = part["text"]
    return text


def _tool_calls(calls: Any, where: str) -> list[dict[str, Any]]:
    if not isinstance(calls, list | tuple):
        raise RequestError(f"{where}: expected a list, got {_kind(calls)}")
    return [_tool_call(call, f"{where}[{index}]") for index, call in enumerate(calls)]


def _tool_call(call: Any, where: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise RequestError(f"{where}.function: expected an object with a name")
    arguments = _arguments(function.get("arguments"), f"{where}.function.arguments")
    return {**call, "function": {**function, "arguments": arguments}}


def _arguments(arguments: Any, where: str) -> JsonObject:
    """Most templates expect an object; the API carries it as JSON text."""
    text = arguments or None if isinstance(arguments, str) else None
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError) as error:
            raise RequestError(f"{where}: not valid JSON: {error}") from error
    if arguments is None:
        return JsonObject({})
    if not isinstance(arguments, Mapping):
        raise RequestError(f"{where}: expected an object, got {_kind(arguments)}")
    return JsonObject(arguments, text)


def _kind(value: Any) -> str:
    return "null" if value is None else f"a {type(value).__name__}"
