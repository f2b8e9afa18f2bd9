"""What a terminal may be sent: text from a model or a file must not steer it."""

from __future__ import annotations

import sys
from typing import TextIO

from zllm.errors import ZllmError

# C0 and C1 controls but tab and newline: escape sequences begin with one of them.
_CONTROLS = dict.fromkeys([*range(9), *range(11, 32), *range(127, 160)], "\ufffd")


def printable(text: str) -> str:
    """`text` with every control character but tab and newline replaced by U+FFFD."""
    return text.translate(_CONTROLS)


def show(text: str, stream: TextIO) -> None:
    """Write text of a model at once; a pipe gets it as it is, a terminal without controls.

    ZllmError if it cannot be written, but for a closed pipe, which is the command's to end by.
    """
    try:
        stream.write(printable(text) if stream.isatty() else text)
        stream.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise ZllmError(f"cannot write the answer: {error.strerror or error}") from error


def tolerate_encodings() -> None:
    """Let no character that a stream's encoding lacks, or broken input, end the program."""
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)  # a test's stand-in has none
        if reconfigure is not None:
            reconfigure(errors="replace")
