"""A program on a terminal of its own, typed to and read from."""

from __future__ import annotations

import codecs
import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

CTRL_C, CTRL_D = "\x03", "\x04"

# The child makes its terminal the controlling one, so that Ctrl-C becomes SIGINT. Tests in the
# background of a shell are told to ignore that, and so would their children be.
_START = (
    "import fcntl, signal, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    "signal.signal(signal.SIGINT, signal.default_int_handler); "
    "from zllm.bin.main import main; sys.exit(main(sys.argv[1:]))"
)


class Terminal:
    """`zllm` with `arguments`, seeing a terminal on all three streams."""

    def __init__(self, arguments: list[str], cache: Path) -> None:
        self._master, slave = pty.openpty()
        environment = {**os.environ, "TERM": "xterm", "ZLLM_CACHE": str(cache)}
        self.process = subprocess.Popen(
            [sys.executable, "-c", _START, *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            env=environment,
        )
        os.close(slave)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.unread = ""

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def interrupt(self) -> None:
        """Ctrl-C at a prompt, once the program waits there.

        CPython's input() misses a signal between showing its prompt and its select() until the next
        key; a person is not so fast.
        """
        time.sleep(0.3)
        self.type(CTRL_C)

    def expect(self, text: str, timeout_s: float = 60) -> str:
        """What came up to and with `text`; AssertionError if it does not come."""
        end = time.monotonic() + timeout_s
        while text not in self.unread:
            more = self._read(end - time.monotonic())
            assert more, f"expected {text!r}, got {self.unread[-500:]!r}"
            self.unread += more
        before, _, self.unread = self.unread.partition(text)
        return before + text

    def ask(self, text: str, prompt: str = "> ", timeout_s: float = 60) -> str:
        """Type a line and return all that comes up to the next prompt.

        What is typed before the prompt is there may be lost: the terminal changes its mode.
        """
        self.type(text + "\n")
        self.expect("\n", timeout_s)  # the echo
        return self.expect(prompt, timeout_s)

    def wait(self, timeout_s: float = 60) -> int:
        """The exit code, once all that it wrote is read."""
        end = time.monotonic() + timeout_s
        while more := self._read(end - time.monotonic()):
            self.unread += more
        return self.process.wait(max(0, end - time.monotonic()))

    def _read(self, timeout_s: float) -> str:
        """Some text; "" at the end or when the time is up."""
        end = time.monotonic() + timeout_s
        text = ""
        while not text:  # a read may end inside a character
            ready, _, _ = select.select([self._master], [], [], max(0, end - time.monotonic()))
            if not ready:
                return ""
            try:
                data = os.read(self._master, 4096)
            except OSError:  # Linux: the other side is closed
                return ""
            if not data:
                return ""
            text = self._decoder.decode(data)
        return text
