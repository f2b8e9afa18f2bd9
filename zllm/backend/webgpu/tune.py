"""The search for settings of matrix products: whole rounds of a model, timed kernel by kernel."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from zllm.backend.webgpu.tracing import TracedKernel, TracingBackend
from zllm.backend.webgpu.tuned import SETTINGS
from zllm.backend.webgpu.tuning import Choice, Few

WORTH = 0.98  # of the time: a smaller gain is noise
# Kernels that have settings; the format.
PRODUCT = re.compile("product_(?:staged|planes|pairs|input)_(.+)")

Answers = list[list[int]]
# tokens -> the answers to so many sequences, and the kernels of some of their rounds.
Measure = Callable[[int], tuple[Answers, Sequence[Sequence[TracedKernel]]]]


@dataclass(frozen=True, slots=True)
class Tried:
    """A setting, and what the products of a round took with it, by format."""

    tokens: int
    few: Few | None  # None: the table as it was
    ms: dict[str, float]
    right: bool  # the answers are those of the table as it was


def search(backend: TracingBackend, tokens: Sequence[int], measure: Measure) -> Iterator[Tried]:
    """Every setting at each number of tokens; the table as it was is first, and is restored."""
    before = backend.device.info
    try:
        for count in tokens:
            backend.device.info = before
            expected, rounds = measure(count)
            yield Tried(count, None, _ms(rounds), True)
            for few in SETTINGS:
                if count == 1 and few.kernel != "staged":
                    continue
                tuning = replace(before.tuning, choices=(Choice("", count, few),))
                backend.device.info = replace(before, tuning=tuning)
                answers, rounds = measure(count)
                yield Tried(count, few, _ms(rounds), answers == expected)
    finally:
        backend.device.info = before


def best(tried: Sequence[Tried]) -> tuple[Choice, ...]:
    """The fastest right setting of each format and number of tokens, where it is worth a change."""
    found: list[Choice] = []
    for count in dict.fromkeys(t.tokens for t in tried):
        there = [t for t in tried if t.tokens == count]
        for format, before_ms in there[0].ms.items():
            usable = [t for t in there if t.few is not None and t.right and format in t.ms]
            fastest = min(usable, key=lambda t: t.ms[format], default=None)
            if fastest and fastest.few and fastest.ms[format] < WORTH * before_ms:
                found.append(Choice(format, count, fastest.few))
    return tuple(found)


def _ms(rounds: Sequence[Sequence[TracedKernel]]) -> dict[str, float]:
    """By format: the sum over a round's products, each at its fastest in any of the rounds."""
    sums: dict[str, float] = defaultdict(float)
    for same in zip(*rounds, strict=True):
        if product := PRODUCT.fullmatch(same[0].name):
            took = min(kernel.end_ns - kernel.begin_ns for kernel in same)
            sums[product[1]] += took / 1e6
    return dict(sums)
