"""Timed requests through the engine itself: its prefill, and its decode rounds."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from zllm.embedded import Engine

GREEDY = {"temperature": 0, "ignore_eos": True, "repetition_penalty": 1, "return_token_ids": True}


@dataclass(frozen=True, slots=True)
class PrefillRun:
    tokens: int
    seconds: float  # until the first token of the answer is there

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds


@dataclass(frozen=True, slots=True)
class DecodeRun:
    tokens: int  # of all sequences
    seconds: float
    first_s: float  # from the request to the first token of every sequence
    host_s: float  # CPU time of the engine's thread
    sequences: int

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds

    @property
    def round_s(self) -> float:
        return self.seconds * self.sequences / self.tokens

    @property
    def host_ms_per_round(self) -> float:
        return 1000 * self.host_s * self.sequences / self.tokens


class Prompts:
    """Seeded random ids; no prompt begins like one before it, so no cached prefix is reused."""

    def __init__(self, vocabulary: int) -> None:
        self._vocabulary = vocabulary
        self._random = np.random.default_rng(0)
        self._given = 0

    def take(self, tokens: int) -> list[int]:
        ids: list[int] = self._random.integers(self._vocabulary, size=tokens).tolist()
        ids[0] = self._given % self._vocabulary
        self._given += 1
        return ids


def prefill(engine: Engine, prompt: list[int]) -> PrefillRun:
    start = time.perf_counter()
    answer = engine.generate({"tokens": prompt, "max_tokens": 1, **GREEDY})
    seconds = time.perf_counter() - start
    assert answer["usage"]["completion_tokens"] == 1
    return PrefillRun(len(prompt), seconds)


def decode(engine: Engine, prompts: list[list[int]], new_tokens: int) -> DecodeRun:
    """All prompts at once; timed over rounds in which every sequence gets a token."""
    request = {"max_tokens": new_tokens + spare_tokens(len(prompts)), **GREEDY}
    start = time.perf_counter()
    streams: list[Any] = [engine.stream({"tokens": prompt, **request}) for prompt in prompts]
    for stream in streams:
        next(stream)
    all_there = time.perf_counter()
    if len(streams) > 1:
        _turn(streams)  # what the first ones got while others were still read
    first, host_first = time.perf_counter(), time.thread_time()
    tokens = sum(_turn(streams) for _ in range(new_tokens - 1))
    last, host_last = time.perf_counter(), time.thread_time()
    for stream in streams:
        stream.close()
    assert tokens >= (new_tokens - 1) * len(prompts), tokens
    return DecodeRun(tokens, last - first, all_there - start, host_last - host_first, len(prompts))


def spare_tokens(sequences: int) -> int:
    """Room for what the first of several sequences generate until the last has begun."""
    return 3 * sequences if sequences > 1 else 0


def _turn(streams: list[Any]) -> int:
    """A chunk of each: whoever needs a round runs it for all."""
    return sum(count_tokens(next(stream)) for stream in streams)


def count_tokens(chunk: dict[str, Any]) -> int:
    return sum(len(choice["token_ids"]) for choice in chunk["choices"])
