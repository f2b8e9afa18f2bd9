"""zllm chat on a terminal: a real one, typed to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers.terminal import CTRL_C, CTRL_D, Terminal

Chat = Callable[..., Terminal]


@pytest.fixture
def chat(data_dir: Path, tmp_path: Path) -> Chat:
    """Starts a chat with the chain model, or another, and its history in tmp_path."""

    def start(*argv: str, model: str | None = None, cache: Path = tmp_path) -> Terminal:
        model = model or str(data_dir / "cases" / "chain-a")
        flags = ["--model", model, "--backend", "oracle", "--temperature", "0"]
        return Terminal(["chat", *flags, *argv], cache)

    return start


def test_conversation_is_kept_until_cleared(chat: Chat) -> None:
    with chat("--stats") as terminal:
        terminal.expect("> ")
        answer = terminal.ask("hi 3")
        assert " alpha beta gamma delta" in answer and "prompt 5 tokens, 0 cached" in answer
        answer = terminal.ask("hi 1")
        assert " ok\U0001f600!!" in answer
        # The first question, its answer, the second question.
        assert "prompt 18 tokens, 5 cached" in answer
        assert "forgotten" in terminal.ask("/clear")
        assert "prompt 5 tokens" in terminal.ask("hi 1")
        terminal.type("/exit\n")
        assert terminal.wait() == 0


def test_too_long_a_question_leaves_the_conversation_unharmed(chat: Chat) -> None:
    with chat("--stats") as terminal:
        terminal.expect("> ")
        assert "prompt 5 tokens" in terminal.ask("hi 1")
        refused = terminal.ask("x" * 70)
        assert "zllm: error: the prompt has " in refused
        assert "(/clear starts anew)" in refused
        assert "prompt 15 tokens" in terminal.ask("hi 1")
        terminal.type(CTRL_D)
        assert terminal.wait() == 0


def test_commands(chat: Chat) -> None:
    with chat("--stats") as terminal:
        terminal.expect("> ")
        assert "/system TEXT" in terminal.ask("/help")
        assert "no command /nonsense" in terminal.ask("/nonsense")
        assert "system message set" in terminal.ask("/system ab")
        assert "prompt 8 tokens" in terminal.ask("hi 1")
        assert "system message removed" in terminal.ask("/system")
        terminal.ask("/clear")
        assert "prompt 13 tokens" in terminal.ask("/etc/hosts 1")  # a path is no command


def test_backslash_continues_a_line(chat: Chat) -> None:
    with chat("--stats") as terminal:
        terminal.expect("> ")
        terminal.ask("hi\\", prompt="… ")
        assert "prompt 5 tokens" in terminal.ask("1")  # user, h, i, newline, 1


def test_prompt_is_left_by_two_interrupts(chat: Chat) -> None:
    with chat() as terminal:
        terminal.expect("> ")
        terminal.interrupt()
        terminal.expect("(Ctrl-C again, Ctrl-D or /exit leaves)")
        terminal.expect("> ")
        assert " ok" in terminal.ask("hi 1")
        terminal.interrupt()
        terminal.expect("leaves)")
        terminal.expect("> ")
        terminal.interrupt()
        assert terminal.wait() == 0


def test_interrupt_stops_the_answer_and_not_the_chat(chat: Chat, smollm2_path: Path) -> None:
    with chat("--ignore-eos", model=str(smollm2_path)) as terminal:
        terminal.expect("> ", 120)
        terminal.type("Write a long story about the ocean.\n")
        terminal.expect("\n")
        terminal.expect(" a ", 120)
        terminal.type(CTRL_C)
        terminal.expect("[stopped]", 120)
        terminal.expect("> ")
        terminal.ask("/clear")
        terminal.type("What is the capital of France?\n")
        terminal.expect("France is Paris", 120)
        terminal.type(CTRL_C)
        terminal.expect("[stopped]", 120)
        terminal.expect("> ")
        terminal.type(CTRL_D)
        assert terminal.wait() == 0


def test_interrupt_ends_a_single_answer(chat: Chat, smollm2_path: Path) -> None:
    argv = ("--ignore-eos", "Write a long story about the ocean.")
    with chat(*argv, model=str(smollm2_path)) as terminal:
        terminal.expect(" a ", 120)
        terminal.type(CTRL_C)
        assert terminal.wait() == 130
        assert "Traceback" not in terminal.unread


def test_history_is_kept_in_the_cache_folder(chat: Chat, tmp_path: Path) -> None:
    pytest.importorskip("readline")
    with chat() as terminal:
        terminal.expect("> ")
        terminal.ask("hi 1")
        terminal.type("/exit\n")
        assert terminal.wait() == 0
    assert "hi 1\n" in (tmp_path / "chat_history").read_text()
    with chat() as terminal:
        terminal.expect("> ")
        assert " ok" in terminal.ask("\x1b[A\x1b[A")  # up, up: over /exit


def test_history_that_cannot_be_kept_is_no_error(chat: Chat, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with chat(cache=file / "cache") as terminal:
        terminal.expect("> ")
        terminal.ask("hi 1")
        terminal.type(CTRL_D)
        assert terminal.wait() == 0
        assert "rror" not in terminal.unread


def test_json_has_no_conversation(chat: Chat) -> None:
    with chat("--json") as terminal:
        assert terminal.wait() == 1
        assert "--json needs a PROMPT" in terminal.unread
