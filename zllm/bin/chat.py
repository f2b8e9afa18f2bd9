"""zllm chat: one answer, or a conversation in the terminal."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Mapping
from typing import Any

from zllm.bin.answer_stats import memory_text
from zllm.bin.conversation import Conversation, converse
from zllm.bin.model_flags import add_engine, open_engine
from zllm.bin.sampling_flags import (
    CHAT_TEMPERATURE,
    add_sampling,
    refuse_json_only,
    sampling_fields,
)
from zllm.bin.terminal import show, tolerate_encodings
from zllm.embedded import Engine
from zllm.errors import ZllmError
from zllm.text.tokenizer import valid_text

DEFAULT_MODEL = "smollm2"
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells report it


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "prompt",
        nargs="?",
        metavar="PROMPT",
        help="answer this and stop; without it: all of standard input, or on a terminal a chat",
    )
    add_engine(parser, model=DEFAULT_MODEL)
    parser.add_argument("--system", metavar="TEXT", help="the system message")
    parser.add_argument("--stats", action="store_true", help="tokens, times and memory on stderr")
    parser.add_argument(
        "--json", action="store_true", help="write the answer as an OpenAI chat completion"
    )
    add_sampling(parser)


def run(args: argparse.Namespace) -> int:
    tolerate_encodings()
    fields = sampling_fields(args)
    if not args.json:
        refuse_json_only(fields)
    prompt = _prompt(args)
    if prompt is None and args.json:
        raise ZllmError("--json needs a PROMPT: a conversation is not JSON")
    engine, load_s = open_engine(args)
    with engine, asyncio.Runner() as runner:
        if args.stats:
            print(f"loaded in {load_s:.2f} s on {engine.backend.name}", file=sys.stderr)
        if "temperature" not in fields and engine.model.checkpoint.generation.temperature is None:
            fields["temperature"] = CHAT_TEMPERATURE
        conversation = Conversation(engine, runner, fields, args.system, stats=args.stats)
        if prompt is None:
            return converse(conversation)
        if args.json:
            return _answer_json(engine, conversation.request(prompt), stats=args.stats)
        return _answer(conversation, prompt)


def _prompt(args: argparse.Namespace) -> str | None:
    """None: a conversation. ZllmError if there is nothing to answer."""
    prompt: str | None = args.prompt
    if prompt is None:
        if sys.stdin is not None and sys.stdin.isatty():
            return None
        data = b"" if sys.stdin is None else sys.stdin.buffer.read()
        prompt = valid_text(data).rstrip("\r\n")
        if not prompt.strip():
            raise ZllmError("standard input is empty: give a PROMPT, or start on a terminal")
    if not prompt.strip():
        raise ZllmError("the prompt is empty: there is nothing to answer")
    return prompt


def _answer(conversation: Conversation, prompt: str) -> int:
    try:
        answer = conversation.ask(prompt)
    except KeyboardInterrupt:  # before the answer began
        return EXIT_INTERRUPTED
    if answer.text and not answer.text.endswith("\n"):
        show("\n", sys.stdout)
    if conversation.stats:
        print(answer.stats, file=sys.stderr)
    return EXIT_INTERRUPTED if answer.interrupted else 0


def _answer_json(engine: Engine, request: Mapping[str, Any], *, stats: bool) -> int:
    answer = engine.generate(request)
    print(json.dumps(answer))
    if stats:
        print(memory_text(engine.backend.memory()), file=sys.stderr)
    return 0
