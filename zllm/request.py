"""A request as structured JSON: OpenAI's field names, checked one by one."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from zllm.errors import RequestError

ID_DIGITS = 10  # of a token id, which is an int32
MAX_CHOICES = 128  # OpenAI API reference: n
MAX_TOP_LOGPROBS = 20  # OpenAI API reference: top_logprobs
# Below this a temperature only overflows the division: it draws the largest logit all the same.
GREEDY_TEMPERATURE = 1e-6
# Beyond these f32 logits overflow, or a banned token is no longer out of reach.
MAX_TEMPERATURE = 1e6
MAX_REPETITION_PENALTY = 1e6


@dataclass(frozen=True, slots=True)
class Request:
    """A checked request. Exactly one of messages, prompt and tokens is set."""

    messages: list[dict[str, Any]] | None = None
    prompt: str | None = None
    tokens: tuple[int, ...] | None = None
    max_tokens: int | None = None
    min_tokens: int = 0
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: dict[int, float] = field(default_factory=dict)
    seed: int = field(default_factory=lambda: secrets.randbits(63))
    n: int = 1
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    top_logprobs: int = -1  # -1: no logprobs; 0: of the drawn tokens
    tools: list[dict[str, Any]] | None = None
    chat_template_kwargs: dict[str, Any] = field(default_factory=dict)
    return_token_ids: bool = False
    include_usage: bool = False  # a last chunk with usage when streaming
    model: str | None = None

    @property
    def chat(self) -> bool:
        return self.messages is not None


def parse_request(body: Mapping[str, Any], *, vocabulary: int) -> Request:
    """Check a request. RequestError names the field, what it was and what it may be."""
    if not isinstance(body, Mapping):
        raise RequestError(f"a request is a JSON object, got {_kind(body)}")
    # JSON clients send null for what they leave out.
    given = {name: value for name, value in body.items() if value is not None}
    unknown = [str(name) for name in given if name not in _FIELDS]
    if unknown:
        raise RequestError(
            f"unknown field{'s' * (len(unknown) > 1)} {', '.join(sorted(unknown))}; "
            f"known: {', '.join(sorted(_FIELDS))}"
        )
    _check_pairs(given)
    values: dict[str, Any] = {}
    for name, value in given.items():
        values.update(_FIELDS[name](name, value))
    _check_source(values)
    _check_ids(values, vocabulary)
    _merge_logprobs(values, chat="messages" in values)
    return Request(**values)


def _check_pairs(given: Mapping[str, Any]) -> None:
    """Two names of one thing may not disagree."""
    if (
        "max_tokens" in given
        and given.get("max_completion_tokens", given["max_tokens"]) != (given["max_tokens"])
    ):
        raise RequestError("max_tokens and max_completion_tokens differ: give one of them")
    logprobs = given.get("logprobs")
    if "top_logprobs" in given and isinstance(logprobs, int) and not isinstance(logprobs, bool):
        raise RequestError("logprobs is a number and top_logprobs is given too: give one of them")


def _check_source(values: dict[str, Any]) -> None:
    sources = [name for name in ("messages", "prompt", "tokens") if name in values]
    if len(sources) != 1:
        found = " and ".join(sources) if sources else "none of them"
        raise RequestError(f"give exactly one of messages, prompt and tokens, got {found}")
    source = sources[0]
    if not values[source]:
        raise RequestError(f"{source} is empty: there is nothing to answer")


def _check_ids(values: dict[str, Any], vocabulary: int) -> None:
    for name in ("tokens", "stop_token_ids", "logit_bias"):
        for token in values.get(name, ()):
            if not 0 <= token < vocabulary:
                raise RequestError(
                    f"{name}: token id {_shown(token)} is outside the vocabulary of {vocabulary}"
                )


def _merge_logprobs(values: dict[str, Any], *, chat: bool) -> None:
    """Chat: logprobs true and top_logprobs n. Completions: logprobs n."""
    asked = values.pop("logprobs", False)
    top = values.pop("top_logprobs", None)
    if isinstance(asked, bool):
        if top and not asked:
            raise RequestError("top_logprobs needs logprobs: true")
        values["top_logprobs"] = (top or 0) if asked else -1
    elif chat:
        raise RequestError("logprobs must be true or false for messages; top_logprobs is a number")
    else:
        values["top_logprobs"] = asked


Field = Callable[[str, Any], dict[str, Any]]


def _number(low: float, high: float, *, above: bool = False) -> Field:
    """A number in [low, high], or (low, high] if `above`."""

    def check(name: str, value: Any) -> dict[str, Any]:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if number and low <= value <= high and not (above and value == low):
            return {name: float(value)}
        ends = f"{'above' if above else 'at least'} {low:g} and at most {high:g}"
        raise RequestError(f"{name} must be a number {ends}, got {_shown(value)}")

    return check


def _integer(low: int, high: int | None = None, *, into: str | None = None) -> Field:
    def check(name: str, value: Any) -> dict[str, Any]:
        whole = isinstance(value, int) and not isinstance(value, bool)
        if whole and value >= low and (high is None or value <= high):
            return {into or name: value}
        ends = f"of at least {low}" + (f" and at most {high}" if high is not None else "")
        raise RequestError(f"{name} must be an integer {ends}, got {_shown(value)}")

    return check


def _typed(kind: type, wanted: str) -> Field:
    def check(name: str, value: Any) -> dict[str, Any]:
        if isinstance(value, kind):
            return {name: value}
        raise RequestError(f"{name} must be {wanted}, got {_shown(value)}")

    return check


def _ids(name: str, value: Any) -> dict[str, Any]:
    is_list = isinstance(value, list | tuple)
    if is_list and all(isinstance(i, int) and not isinstance(i, bool) for i in value):
        return {name: tuple(value)}
    raise RequestError(f"{name} must be a list of token ids, got {_shown(value)}")


def _stop(name: str, value: Any) -> dict[str, Any]:
    stops = (value,) if isinstance(value, str) else value
    if isinstance(stops, list | tuple) and all(isinstance(s, str) and s for s in stops):
        return {name: tuple(stops)}
    raise RequestError(f"{name} must be a non-empty string or a list of them, got {_shown(value)}")


def _logit_bias(name: str, value: Any) -> dict[str, Any]:
    wanted = f"{name} must map token ids to numbers from -100 to 100"
    if not isinstance(value, Mapping):
        raise RequestError(f"{wanted}, got {_shown(value)}")
    biases: dict[int, float] = {}
    for token, bias in value.items():
        text = token if isinstance(token, str) else _shown(token)
        number = isinstance(bias, int | float) and not isinstance(bias, bool)
        is_id = text.isascii() and text.isdigit() and len(text) <= ID_DIGITS
        if not is_id or not number or not -100 <= bias <= 100:
            raise RequestError(f"{wanted}, got {_shown(token)}: {_shown(bias)}")
        biases[int(text)] = float(bias)
    return {name: biases}


def _logprobs(name: str, value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {name: value}
    return _integer(0, MAX_TOP_LOGPROBS)(name, value)


def _stream(name: str, value: Any) -> dict[str, Any]:
    _typed(bool, "true or false")(name, value)
    return {}  # the method that was called decides


def _stream_options(name: str, value: Any) -> dict[str, Any]:
    _typed(dict, "an object")(name, value)
    unknown = set(value) - {"include_usage"}
    if unknown:
        raise RequestError(f"{name}: unknown field {sorted(unknown)[0]}; known: include_usage")
    usage = value.get("include_usage")
    if usage is not None and not isinstance(usage, bool):
        raise RequestError(f"{name}.include_usage must be true or false, got {_shown(usage)}")
    return {"include_usage": bool(usage)}


# What the engine gives a template itself.
_TEMPLATE_NAMES = frozenset({"messages", "tools", "tokenizer", "control_tokens"})


def _template_kwargs(name: str, value: Any) -> dict[str, Any]:
    _typed(dict, "an object")(name, value)
    for key in value:
        if not isinstance(key, str) or key in _TEMPLATE_NAMES:
            raise RequestError(f"{name}: {_shown(key)} is not a name that a request may set")
    return {name: value}


_FIELDS: dict[str, Field] = {
    "messages": _typed(list, "a list of messages"),
    "prompt": _typed(str, "a string"),
    "tokens": _ids,
    "max_tokens": _integer(1),
    "max_completion_tokens": _integer(1, into="max_tokens"),
    "min_tokens": _integer(0),
    "temperature": _number(0, MAX_TEMPERATURE),
    "top_p": _number(0, 1, above=True),
    "top_k": _integer(-1),
    "min_p": _number(0, 1),
    "repetition_penalty": _number(1 / MAX_REPETITION_PENALTY, MAX_REPETITION_PENALTY),
    "frequency_penalty": _number(-2, 2),
    "presence_penalty": _number(-2, 2),
    "logit_bias": _logit_bias,
    "seed": _integer(-(2**63), 2**64 - 1),
    "n": _integer(1, MAX_CHOICES),
    "stop": _stop,
    "stop_token_ids": _ids,
    "ignore_eos": _typed(bool, "true or false"),
    "logprobs": _logprobs,
    "top_logprobs": _integer(0, MAX_TOP_LOGPROBS),
    "tools": _typed(list, "a list of tools"),
    "chat_template_kwargs": _template_kwargs,
    "return_token_ids": _typed(bool, "true or false"),
    "stream": _stream,
    "stream_options": _stream_options,
    "model": _typed(str, "a string"),
}


def _kind(value: Any) -> str:
    return type(value).__name__


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except ValueError:  # an integer of more digits than Python prints
        return f"a {_kind(value)} too large to show"
    return text if len(text) <= 60 else text[:57] + "..."
