"""What an answer cost: the line that `--stats` prints."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any


class AnswerStats:
    """Fed with an answer's chunks as they come; they must carry token ids."""

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self._host_start = time.thread_time()
        self._first = self._last = 0.0
        self._first_tokens = 0  # that came with the first chunk
        self.tokens = 0
        self._usage: Mapping[str, Any] = {}

    def chunk(self, chunk: Mapping[str, Any]) -> None:
        count = sum(len(choice.get("token_ids") or ()) for choice in chunk["choices"])
        if count:
            self._last = time.perf_counter()
            if not self.tokens:
                self._first, self._first_tokens = self._last, count
            self.tokens += count
        self._usage = chunk.get("usage") or self._usage

    def line(self, memory: Mapping[str, int]) -> str:
        parts = [self._prompt()] if self._usage else []
        if self.tokens:
            parts.append(f"first token {self._first - self._start:.3f} s")
        parts.append(f"{self.tokens} token{'s' * (self.tokens != 1)}")
        seconds = self._last - self._first
        if seconds > 0:
            parts[-1] += f" at {(self.tokens - self._first_tokens) / seconds:.1f}/s"
        parts.append(memory_text(memory))
        return " · ".join(parts)

    def _prompt(self) -> str:
        cached = self._usage["prompt_tokens_details"]["cached_tokens"]
        return f"prompt {self._usage['prompt_tokens']} tokens, {cached} cached"


def memory_text(memory: Mapping[str, int]) -> str:
    """Bytes by what holds them, in MiB."""
    return "memory " + ", ".join(f"{name} {size / 2**20:.0f} MiB" for name, size in memory.items())
