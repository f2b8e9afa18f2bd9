"""Lines typed at a prompt, with editing and a history where Python has readline."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from zllm.fetch.store import cache_dir

PROMPT, CONTINUED = "> ", "… "
HISTORY_LINES = 1000


class LineInput:
    """Reads messages. The history is in the cache folder; one that cannot be kept is no error."""

    def __init__(self, history: Path | None = None) -> None:
        self._history = cache_dir() / "chat_history" if history is None else history
        self._readline = _readline()
        if self._readline is not None:
            self._readline.set_history_length(HISTORY_LINES)
            with suppress(OSError):
                self._readline.read_history_file(self._history)

    def read(self) -> str | None:
        """The next message, continued over lines that end in a backslash; None: the user leaves."""
        interrupted = False
        while True:
            try:
                return _read_message()
            except EOFError:
                print()
                return None
            except KeyboardInterrupt:
                print()
                if interrupted:
                    return None
                interrupted = True
                print("(Ctrl-C again, Ctrl-D or /exit leaves)")

    def close(self) -> None:
        """Keep the history."""
        if self._readline is not None:
            with suppress(OSError):
                self._history.parent.mkdir(parents=True, exist_ok=True)
                self._readline.write_history_file(self._history)


def _read_message() -> str:
    lines = [input(PROMPT)]
    while lines[-1].endswith("\\"):
        lines[-1] = lines[-1][:-1]
        lines.append(input(CONTINUED))
    return "\n".join(lines)


def _readline() -> Any:
    """The module, or None: not every Python has it, and it needs a terminal."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return None
    try:
        import readline
    except ImportError:
        return None
    return readline
