"""How the time of a layer's operations grows with the number of tokens, on tiny models."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from zllm.backend.contract import Op
from zllm.bin.bench_runs import GREEDY, Prompts, count_tokens
from zllm.bin.tiny_checkpoint import TinyModel, tiny_model, write_checkpoint
from zllm.embedded import Engine

# Below, fixed costs of a round and of a block hide the growth.
FITTED_FROM = 1024
DECODED = 8  # tokens timed after each prompt

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Kind:
    """A tiny model whose layers all mix tokens one way, and the operations that do it."""

    name: str
    arch: str
    ops: tuple[str, ...]
    changes: Json  # to the tiny config

    def write(self, folder: Path) -> None:
        model = tiny_model(self.arch)
        write_checkpoint(TinyModel(model.name, {**model.config, **self.changes}), folder, seed=0)


KINDS = (
    Kind("dense", "llama", ("attend",), {}),
    Kind("KDA", "kimi_linear", ("delta",), {"layer_types": ["linear_attention"] * 5}),
    Kind("DSA, k = 64", "deepseek_v32", ("attend_latent", "select"), {"index_topk": 64}),
    Kind("DSA, k = 256", "deepseek_v32", ("attend_latent", "select"), {"index_topk": 256}),
)


@dataclass(slots=True)
class OpTimes:
    """An oracle's observer: adds up the seconds of each operation by its name.

    CPU time of the engine's thread: other programs on the machine do not count.
    """

    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    _last: float = 0.0

    def restart(self) -> None:
        self.seconds.clear()
        self._last = time.thread_time()

    def __call__(self, op: Op, results: Any) -> None:
        now = time.thread_time()
        self.seconds[op.name] += now - self._last
        self._last = now


def measure(kind: Kind, lengths: Sequence[int], runs: int) -> Json:
    """The best of `runs` at every length: whole rounds in ms a token, operations in ms of CPU."""
    best: dict[str, list[float]] = defaultdict(lambda: [float("inf")] * len(lengths))
    with _engine(kind, max(lengths) + DECODED + 1) as engine:
        prompts = Prompts(engine.model.vocabulary)
        _run(engine, prompts.take(min(lengths)), kind.ops)  # first use of memory
        for at, length in enumerate(lengths):
            for _ in range(runs):
                for name, value in _run(engine, prompts.take(length), kind.ops).items():
                    best[name][at] = min(best[name][at], value)
    ops = {
        op: {
            "prefill_ms": best[f"{op} prefill"],
            "prefill_exponent": exponent(lengths, best[f"{op} prefill"]),
            "decode_ms": best[f"{op} decode"],
            "decode_exponent": exponent(lengths, best[f"{op} decode"]),
        }
        for op in kind.ops
    }
    rounds = {f"{name}_ms_per_token": best[name] for name in ("prefill", "decode")}
    return {"name": kind.name, "arch": kind.arch, **rounds, "ops": ops}


@contextmanager
def _engine(kind: Kind, context: int) -> Iterator[Engine]:
    with TemporaryDirectory(prefix="zllm-growth-") as folder:
        kind.write(Path(folder))
        with Engine(
            model=folder, backend="oracle", context=context, lanes=1, cache_tokens=2 * context
        ) as engine:
            yield engine


def _run(engine: Engine, prompt: list[int], ops: Sequence[str]) -> dict[str, float]:
    times = OpTimes()
    backend: Any = engine.backend
    backend.observer = times
    request = {"tokens": prompt, "max_tokens": 1 + DECODED, **GREEDY}
    start = time.perf_counter()
    times.restart()
    stream = engine.stream(request)
    before = count_tokens(next(stream))
    first, in_prefill = time.perf_counter(), dict(times.seconds)
    times.restart()
    after = sum(map(count_tokens, stream))
    last = time.perf_counter()
    backend.observer = None
    assert (before, after) == (1, DECODED), (before, after)
    found = {
        "prefill": 1000 * (first - start) / len(prompt),
        "decode": 1000 * (last - first) / DECODED,
    }
    for op in ops:
        found[f"{op} prefill"] = 1000 * in_prefill[op]
        found[f"{op} decode"] = 1000 * times.seconds[op] / DECODED
    return found


def exponent(lengths: Sequence[int], values: Sequence[float]) -> float | None:
    """e of value ~ length^e by least squares of the logarithms, from `FITTED_FROM` tokens on.

    None if fewer than two lengths are that long.
    """
    long = [(x, y) for x, y in zip(lengths, values, strict=True) if x >= FITTED_FROM]
    if len(long) < 2:
        return None
    x, y = np.log(np.asarray(long)).T
    return float(np.polyfit(x, y, 1)[0])
