"""A case: a few rounds of one op through a backend's public contract, and what comes out of them.

Inputs come in by `embed` from f32 tables that hold one row per token of the case, results go out by
`logits`. What an op needs of others (keys that were appended, ids that were routed) they make.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from zllm.backend.contract import Cache, Group, Op, PlanKey, Recording, StepLayout, Value, Weight
from zllm.kv_cache.spec import CacheSpec, StateSpec
from zllm.weight.linear_weight import LinearWeight

PAGE_SLOTS = 16
LANES = 8  # that the backend of a case must have: sequence i uses lane i, padding the scratch lane

Dtype = Literal["f32", "i32"]
F32: Dtype = "f32"


@dataclass(frozen=True, slots=True)
class Stored:
    """A weight to be loaded: its parts, and the ops that will read it."""

    parts: Sequence[LinearWeight]
    uses: frozenset[str]
    together: int = 1  # rows that are to lie in one buffer
    most: int | None = None  # rows of one buffer


class Recorder:
    """The list of ops of one round, over what was loaded for the case."""

    def __init__(
        self, key: PlanKey, weights: Mapping[str, Weight], caches: Mapping[str, Cache]
    ) -> None:
        self.key = key
        self.weight = weights
        self.cache = caches
        self.ops: list[Op] = []
        self._values = 0

    def read(self, table: str) -> Value:
        """The rows of an input's table: [R, D]."""
        weight = self.weight[table]
        return self.run("embed", (weight,), (weight.shape[1],))[0]

    def run(
        self,
        name: str,
        ins: Sequence[Value | Weight | Cache | None],
        widths: Sequence[int] = (),
        spec: Any = None,
        *,
        dtypes: Sequence[Dtype] = (),
        rows: int = 0,
    ) -> tuple[Value, ...]:
        """An op whose results are `widths` wide, f32 unless `dtypes` says otherwise."""
        kinds = dtypes or [F32] * len(widths)
        shapes = [(rows or self.key.rows, width) for width in widths]
        ids = range(self._values, self._values + len(widths))
        outs = tuple(map(Value, ids, shapes, kinds))
        self._values += len(outs)
        self.ops.append(Op(name, tuple(ins), outs, spec))
        return outs

    def finish(self, layout: StepLayout) -> Recording:
        """Without inputs that nobody reads."""
        read = {value.id for op in self.ops for value in op.ins if isinstance(value, Value)}
        kept = (op for op in self.ops if op.name != "embed" or op.outs[0].id in read)
        return Recording(self.key, layout, tuple(kept))


Record = Callable[[Recorder], Value | None]


@dataclass(frozen=True, slots=True)
class Sampling:
    """Words of StepLayout.SEQ_SAMPLING and seeds; floats and ints by name."""

    words: Mapping[str, float] = field(default_factory=dict)
    flags: int = 0
    counts: NDArray[np.int32] | None = None  # [V] of every lane
    bias: NDArray[np.float32] | None = None


@dataclass(frozen=True, slots=True)
class Case:
    """`rounds[i][s]`: tokens of sequence s in round i; a sequence may pause with 0.

    results: what is read of each round, each in a recording of its own, all of which do the same.
    emit "token": the results are the records. Rounds before the last are checked as well.
    """

    name: str
    ops: frozenset[str]  # that take part
    weights: Mapping[str, Stored]
    caches: Mapping[str, CacheSpec]
    rounds: tuple[tuple[int, ...], ...]
    results: tuple[Record, ...]
    tolerance: float = 1e-4  # of the largest expected number; integers are equal
    emit: Literal["token", "logits"] = "logits"
    sampler: Literal["greedy", "full"] = "greedy"
    top_logprobs: int = -1
    sampling: Sampling = Sampling()
    carried: bool = False  # rounds after the first take the token that the one before drew
    long: bool = False  # RoPE tables have two halves; every second sequence reads the second

    @property
    def tokens(self) -> tuple[int, ...]:
        """Of each sequence."""
        return tuple(map(sum, zip(*self.rounds, strict=True)))

    @property
    def full(self) -> Group:
        """Pages for all sequences, and the scratch page."""
        pages = sum(-(-tokens // PAGE_SLOTS) for tokens in self.tokens)
        return Group("full", PAGE_SLOTS, 1 + max(pages, 1))

    @property
    def state(self) -> Group:
        """A plane per sequence and round, and the scratch plane."""
        return Group("state", 1, 1 + len(self.rounds) * len(self.tokens))

    def group(self, spec: CacheSpec) -> Group:
        return self.state if isinstance(spec, StateSpec) else self.full

    def key(self, index: int) -> PlanKey:
        """Exact; a backend rounds it up to a bucket."""
        counts = self.rounds[index]
        before = [sum(column) for column in zip(*self.rounds[: index + 1], strict=True)]
        present = sum(count > 0 for count in counts)
        rows = sum(counts)
        return PlanKey(rows, present, max(before), self.emit, self.sampler, self.top_logprobs)
