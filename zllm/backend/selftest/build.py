"""A case under construction: inputs, weights and caches for one op, drawn from a seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from zllm.backend.contract import PACKED_USES, Cache, Op, Value, Weight
from zllm.backend.selftest.case import Case, Record, Recorder, Stored
from zllm.backend.selftest.random_weight import dense, random_weight
from zllm.kv_cache.spec import CacheSpec
from zllm.weight.linear_weight import LinearWeight

Rounds = tuple[tuple[int, ...], ...]
Formats = Mapping[str, Sequence[str]]
Banks = Mapping[str, int]
Operand = Value | Weight | Cache | None
Get = Callable[[Recorder], Any]  # an operand of the round that is recorded
Draw = Callable[[np.random.Generator, tuple[int, ...]], NDArray[Any]]

# As the runtime loads them: matrices of products may stay packed, everything else is f32.
VECTOR_USES = frozenset({"rms_norm", "bias"})
TABLE_USES = frozenset({"rope_append", "rope"})


def normal(size: float = 1.0, mean: float = 0.0) -> Draw:
    return lambda rng, shape: rng.standard_normal(shape) * size + mean


def uniform(low: float, high: float) -> Draw:
    return lambda rng, shape: rng.uniform(low, high, shape)


# Operands that are not standard normal, by op and place.
DRAWS: dict[tuple[str, int], Draw] = {
    ("gated", 0): normal(4.0),
    ("soft_cap", 0): normal(30.0),
    ("decay", 1): uniform(-1.0, 2.5),
    ("delta", 3): uniform(-1.5, 0.0),
    ("route", 0): normal(2.0),
    ("route", 1): normal(0.3),
    ("route_by_token", 0): normal(2.0),
    ("hc_split", 1): normal(0.1),
    ("hc_split", 2): normal(0.5),
    ("hc_head", 1): normal(0.1),
    ("hc_head", 2): normal(0.5),
    ("sample", 0): normal(3.0),
}


def _uses(read_by: str) -> frozenset[str]:
    if read_by == "rope":
        return TABLE_USES
    return PACKED_USES if read_by in PACKED_USES else frozenset({read_by})


class Builder:
    """`op` says names, spec and widths; how many rows there are `rounds` says."""

    def __init__(
        self,
        op: Op,
        rounds: Rounds,
        formats: Formats,
        name: str,
        norm: Op | None,
        banks: Banks,
    ) -> None:
        self.op = op
        self.norm = norm  # an rms_norm that operand 0 passes through first
        self.rounds = rounds
        self.formats = formats
        self.banks = banks  # of matrices of experts
        self.name = name
        self.rng = np.random.default_rng(crc32(name.encode()))
        self.tokens = sum(map(sum, rounds))
        self.context = max(map(sum, zip(*rounds, strict=True)))
        self.ops = {op.name}
        self.weights: dict[str, Stored] = {}
        self.caches: dict[str, CacheSpec] = {}

    def case(self, results: Sequence[Record], **more: Any) -> Case:
        return Case(
            name=self.name,
            ops=frozenset(self.ops),
            weights=self.weights,
            caches=self.caches,
            rounds=self.rounds,
            results=tuple(results),
            **more,
        )

    def operand(self, index: int) -> Get:
        """Operand `index` of the op: rows from a table, a weight, or nothing."""
        operand: Operand = self.op.ins[index] if index < len(self.op.ins) else None
        draw = DRAWS.get((self.op.name, index), normal())
        if isinstance(operand, Value):
            rows = self.input(operand.shape[1], draw)
            return rows if index or self.norm is None else self._normed(rows, operand.shape[1])
        if isinstance(operand, Weight):
            return self.stored(operand, draw)
        assert operand is None, self.op
        return lambda recorder: None

    def operands(self) -> list[Get]:
        return [self.operand(index) for index in range(len(self.op.ins))]

    def _normed(self, rows: Get, columns: int) -> Get:
        assert self.norm is not None
        spec, w = self.norm.spec, self.vector(columns)
        self.ops.add("rms_norm")

        def get(recorder: Recorder) -> Value:
            ins = (rows(recorder), w(recorder))
            return recorder.run("rms_norm", ins, (columns,), spec)[0]

        return get

    def input(self, columns: int, draw: Draw | None = None, *, rows: int = 0) -> Get:
        """A value [R, columns]: every token has a row of its own."""
        values = (draw or normal())(self.rng, (rows or self.tokens, columns))
        name = self._hold([dense(values)], frozenset({"embed"}))
        return lambda recorder: recorder.read(name)

    def stored(self, weight: Weight, draw: Draw) -> Get:
        """A matrix in the formats given for its name, else f32; vectors are f32."""
        if len(weight.shape) == 1:
            return self.vector(weight.shape[0], draw)
        named = self.formats.get(weight.name)
        if named is None:
            return self.matrix(weight.shape, draw, parts=weight.parts, read_by=self.op.name)
        parts: list[LinearWeight] = []
        for index, rows in enumerate(weight.parts):
            format = named[index % len(named)]
            parts.append(random_weight(self.rng, format, (rows, weight.shape[1])))
        return self._get(self._hold(parts, _uses(self.op.name), **self._cut(weight)))

    def _cut(self, weight: Weight) -> dict[str, int]:
        """Where the matrix of an op with experts ends in one buffer and goes on in the next."""
        banks = self.banks.get(weight.name, 1)
        if banks == 1 or self.op.name != "experts":
            return {}
        experts = self.op.spec.experts
        own = weight.shape[0] // experts
        return {"together": own, "most": -(-experts // banks) * own}

    def vector(self, size: int, draw: Draw | None = None) -> Get:
        values = (draw or normal())(self.rng, (size,))
        return self._get(self._hold([dense(values)], VECTOR_USES))

    def matrix(
        self,
        shape: tuple[int, ...],
        draw: Draw | None = None,
        *,
        read_by: str,
        parts: Sequence[int] = (),
    ) -> Get:
        """f32."""
        values = (draw or normal())(self.rng, shape)
        cuts = np.cumsum(parts or [shape[0]])[:-1]
        split = [dense(part) for part in np.split(values, cuts)]
        return self._get(self._hold(split, _uses(read_by)))

    def rope_table(self, rotated: int, halves: int = 1) -> Get:
        """Any numbers will do as cos and sin."""
        parts = [self.context] * halves
        return self.matrix((sum(parts), rotated), read_by="rope", parts=parts)

    def cache(self, spec: CacheSpec) -> Get:
        name = f"cache {len(self.caches)}"
        self.caches[name] = spec
        return lambda recorder: recorder.cache[name]

    def _hold(self, parts: Sequence[LinearWeight], uses: frozenset[str], **cut: int) -> str:
        name = f"weight {len(self.weights)}"
        self.weights[name] = Stored(parts, uses, **cut)
        return name

    def _get(self, name: str) -> Get:
        return lambda recorder: recorder.weight[name]

    def run(self, ins: Sequence[Get], recorder: Recorder) -> tuple[Value, ...]:
        """The op itself on these operands."""
        op = self.op
        return recorder.run(
            op.name,
            [get(recorder) for get in ins],
            [out.shape[1] for out in op.outs],
            op.spec,
            dtypes=[out.dtype for out in op.outs],
        )

    def each_result(self, ins: Sequence[Get]) -> list[Record]:
        """One record per result of the op."""

        def of(index: int) -> Record:
            return lambda recorder: self.run(ins, recorder)[index]

        return [of(index) for index in range(len(self.op.outs))]
