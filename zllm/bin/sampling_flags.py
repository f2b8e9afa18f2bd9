"""The sampling fields of a request as flags: OpenAI's names, with dashes."""

from __future__ import annotations

import argparse
import json
from typing import Any

from zllm.errors import ZllmError

# What chat uses where neither a flag nor the checkpoint says: at 1.0 small models ramble.
CHAT_TEMPERATURE = 0.6

_NUMBERS: tuple[tuple[str, type, str], ...] = (
    (
        "temperature",
        float,
        f"0 picks the likeliest token (default: what the model suggests, else {CHAT_TEMPERATURE})",
    ),
    ("top_p", float, "draw from the likeliest tokens with this probability together"),
    ("top_k", int, "draw from this many likeliest tokens"),
    ("min_p", float, "draw from tokens at least this likely, relative to the likeliest"),
    ("repetition_penalty", float, "divide the logits of tokens seen before; 1 is off"),
    ("frequency_penalty", float, "lower a token for each time it was generated"),
    ("presence_penalty", float, "lower a token once it was generated"),
    ("seed", int, "the same seed draws the same answer"),
    ("max_tokens", int, "end the answer after this many tokens"),
    ("min_tokens", int, "do not end the answer before this many tokens"),
    ("n", int, "how many answers (with --json)"),
    ("top_logprobs", int, "log probabilities of this many likeliest tokens (with --json)"),
)
_SWITCHES = {
    "ignore_eos": "do not end the answer at the model's end token",
    "logprobs": "log probabilities of the answer's tokens (with --json)",
    "return_token_ids": "the answer's token ids as well (with --json)",
}
JSON_ONLY = ("n", "logprobs", "top_logprobs", "return_token_ids")


def add_sampling(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("sampling")
    for name, kind, about in _NUMBERS:
        metavar = "N" if kind is int else "X"
        group.add_argument(_flag(name), type=kind, metavar=metavar, help=about)
    group.add_argument(
        "--stop",
        action="append",
        metavar="TEXT",
        help="end the answer before this text; repeatable",
    )
    group.add_argument(
        "--logit-bias", metavar="JSON", help="added to logits by token id, as in '{\"42\": -100}'"
    )
    for name, about in _SWITCHES.items():
        group.add_argument(_flag(name), action="store_true", default=None, help=about)


def sampling_fields(args: argparse.Namespace) -> dict[str, Any]:
    """The request's fields that were given. Their values are the engine's to check."""
    names = [name for name, _, _ in _NUMBERS] + ["stop", *_SWITCHES]
    fields = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    if args.logit_bias is not None:
        try:
            fields["logit_bias"] = json.loads(args.logit_bias)
        except (json.JSONDecodeError, RecursionError) as error:
            raise ZllmError(f"--logit-bias is no JSON object: {error}") from None
    return fields


def refuse_json_only(fields: dict[str, Any]) -> None:
    """ZllmError naming a field whose answer only JSON can show."""
    for name in JSON_ONLY:
        if name in fields:
            raise ZllmError(f"{_flag(name)} needs --json: plain text cannot show it")


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
