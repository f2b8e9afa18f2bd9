"""Where a token's time goes, told now and then while tokens come."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from time import perf_counter
from typing import Any

from zllm.backend.contract import Op

PERIOD_S = 0.4
ROWS = 8  # of a picture
DEVICE, HOST = "the GPU", "Python, JavaScript"

# Ops by the names that a visitor may know.
NAMES = {
    "linear": "matrix products",
    "norm_linear": "matrix products",
    "gated_linear": "feed-forward",
    "norm_gated_linear": "feed-forward",
    "rope_append": "positions, cache",
    "attend": "attention",
    "attend_latent": "attention",
    "rms_norm": "norms",
    "sample": "choosing a token",
    "experts": "experts",
    "embed": "embedding",
}

Shares = Sequence[tuple[str, float]]  # (op, seconds), as `Engine.profile` tells them
Picture = dict[str, Any]


class Meter:
    """Follows one answer. On NumPy the ops of single tokens are timed, so that it costs nothing.

    shares: of a device's round; without them its time is one row.
    """

    def __init__(self, backend: Any, shares: Shares) -> None:
        self.backend = backend
        self._shares = shares
        self._device = getattr(backend, "device", None)
        self._ops: dict[str, float] = defaultdict(float)
        self._sampling = False
        self._restart()

    def token(self) -> Picture | None:
        """After each piece of the answer: a picture, where it is time for one."""
        self._tokens += 1
        now = perf_counter()
        if self._sampling:
            return self._sampled(now)
        if now - self._began < PERIOD_S:
            return None
        if self._device is not None:
            return self._waited(now)
        self._ops.clear()
        self._restart()
        self._sampling, self._last = True, self._began
        self.backend.observer = self._observe
        return None

    def close(self) -> None:
        if self._sampling:
            self.backend.observer = None
            self._sampling = False

    def _restart(self) -> None:
        self._began, self._tokens = perf_counter(), 0
        self._waited_s = self._device.waited_s if self._device is not None else 0.0

    def _observe(self, op: Op, _: object) -> None:
        now = perf_counter()
        self._ops[op.name] += now - self._last
        self._last = now

    def _sampled(self, now: float) -> Picture:
        self.close()
        seconds = list(self._ops.items())
        rest = max(0.0, now - self._began - sum(s for _, s in seconds))
        tokens = self._tokens
        self._restart()
        return picture([*seconds, (HOST, rest)], tokens)

    def _waited(self, now: float) -> Picture:
        assert self._device is not None
        waited = self._device.waited_s - self._waited_s
        rest = max(0.0, now - self._began - waited)
        tokens, whole = self._tokens, sum(seconds for _, seconds in self._shares)
        self._restart()
        ops = [(name, waited * seconds / whole) for name, seconds in self._shares]
        return picture([*(ops or [(DEVICE, waited)]), (HOST, rest)], tokens)


def picture(seconds: Iterable[tuple[str, float]], tokens: int = 1) -> Picture:
    """Milliseconds of one token by the visitor's names, the longest first."""
    named: dict[str, float] = defaultdict(float)
    for name, each in seconds:
        named[NAMES.get(name, name)] += 1000 * each / tokens
    longest = sorted(named.items(), key=lambda pair: -pair[1])
    rows = [{"name": name, "ms": ms} for name, ms in longest[:ROWS]]
    if rest := sum(ms for _, ms in longest[ROWS:]):
        rows.append({"name": "all else", "ms": rest})
    return {"rows": rows, "total_ms": sum(named.values())}
