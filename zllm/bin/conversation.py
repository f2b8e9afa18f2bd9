"""A conversation with a model: its messages, one answer at a time, and the terminal around it."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from zllm.bin.answer_stats import AnswerStats
from zllm.bin.line_input import LineInput
from zllm.bin.terminal import printable, show
from zllm.embedded import Engine
from zllm.errors import RequestError, ZllmError

HELP = """\
/system TEXT  set the system message; without TEXT remove it
/clear        forget the conversation
/help         show this
/exit         leave; so do Ctrl-D, and Ctrl-C twice at the prompt
A backslash at the end of a line continues it. Ctrl-C stops an answer."""


@dataclass(slots=True)
class Answer:
    text: str = ""
    finish: str | None = None
    interrupted: bool = False
    stats: str = ""


class Conversation:
    """Messages so far, and how to ask for more."""

    def __init__(
        self,
        engine: Engine,
        runner: asyncio.Runner,
        fields: dict[str, Any],
        system: str | None,
        *,
        stats: bool,
    ) -> None:
        self.engine = engine
        self.fields = fields
        self.system = system
        self.stats = stats
        self.messages: list[dict[str, str]] = []  # without the system message
        self._runner = runner

    def request(self, text: str) -> dict[str, Any]:
        """The request that asks `text` next."""
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        question = {"role": "user", "content": text}
        return {"messages": [*system, *self.messages, question], **self.fields}

    def ask(self, text: str) -> Answer:
        """Stream an answer to standard output; Ctrl-C stops it. An error leaves no trace of it."""
        # The runner turns the first SIGINT into a cancellation at the next await, so that no round
        # is torn apart.
        answer: Answer = self._runner.run(self._stream(self.request(text)))
        if answer.text:
            self.messages += [
                {"role": "user", "content": text},
                {"role": "assistant", "content": answer.text},
            ]
        return answer

    async def _stream(self, request: dict[str, Any]) -> Answer:
        answer, stats = Answer(), AnswerStats()
        extra: dict[str, Any] = {"stream_options": {"include_usage": True}}
        if self.stats:
            extra["return_token_ids"] = True
        chunks = self.engine.astream(request | extra)
        try:
            async for chunk in chunks:
                stats.chunk(chunk)
                for choice in chunk["choices"]:
                    self._take(choice, answer)
        except asyncio.CancelledError:
            answer.interrupted = True
        finally:
            await chunks.aclose()  # type: ignore[attr-defined]
        answer.stats = stats.line(self.engine.backend.memory())
        return answer

    def _take(self, choice: dict[str, Any], answer: Answer) -> None:
        text = choice["delta"].get("content", "")
        if text:
            answer.text += text
            show(text, sys.stdout)
        answer.finish = choice["finish_reason"] or answer.finish


def converse(conversation: Conversation) -> int:
    """Read, answer, repeat, until the user leaves; returns the exit code."""
    name, backend = conversation.engine.model.name, conversation.engine.backend.name
    print(printable(f"{name} on {backend}. /help shows the commands."))
    lines = LineInput()
    try:
        while (text := lines.read()) is not None:
            command = re.fullmatch(r"/([a-z]*)(?:\s+(.*))?", text.strip(), re.DOTALL)
            if command is not None:
                if command[1] in ("exit", "quit"):
                    break
                _run_command(conversation, command[1], command[2] or "")
            elif text.strip():
                _turn(conversation, text)
    finally:
        lines.close()
    return 0


def _turn(conversation: Conversation, text: str) -> None:
    try:
        answer = conversation.ask(text)
    except ZllmError as error:
        hint = " (/clear starts anew)" if isinstance(error, RequestError) else ""
        print(f"zllm: error: {error}{hint}", file=sys.stderr)
        return
    except KeyboardInterrupt:  # twice: the answer is stopped as well
        print()
        return
    print(" [stopped]" if answer.interrupted else "")
    if answer.finish == "length":
        print("[ended at the limit of tokens or context]", file=sys.stderr)
    if conversation.stats:
        print(answer.stats, file=sys.stderr)


def _run_command(conversation: Conversation, name: str, argument: str) -> None:
    actions: dict[str, Callable[[], str]] = {
        "help": lambda: HELP,
        "clear": lambda: _clear(conversation),
        "system": lambda: _set_system(conversation, argument),
    }
    unknown = f"no command /{name}; /help shows the commands"
    print(actions.get(name, lambda: unknown)())


def _clear(conversation: Conversation) -> str:
    conversation.messages.clear()
    return "forgotten"


def _set_system(conversation: Conversation, text: str) -> str:
    conversation.system = text or None
    return "system message set" if text else "system message removed"
