"""One op by itself: its operands come from another backend, and its results go back there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from zllm.backend.contract import Cache, Op, Recording, RecordLayout, StepLayout, Value
from zllm.backend.oracle import ops
from zllm.backend.oracle.step import Step

if TYPE_CHECKING:
    from zllm.backend.oracle.backend import OracleBackend

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]


class SingleOp:
    """Arrays are filled before `run` and read after it; the weights lie in the oracle already."""

    def __init__(self, op: Op, recording: Recording, oracle: OracleBackend) -> None:
        key = recording.key
        self.layout: StepLayout = recording.layout
        self.records: I32 = np.zeros((key.seqs, RecordLayout(key.top_logprobs).words), np.int32)
        self.logits: F32 | None = None
        self.carry = oracle.carry
        self._oracle = oracle
        values = [operand for operand in op.ins if isinstance(operand, Value)]
        self._arrays = {value.id: np.zeros(value.shape, np.float32) for value in values}
        self._place(op.outs)
        self._run = ops.LOWER[op.name](op, self, oracle)

    def _place(self, outs: tuple[Value, ...]) -> None:
        """Results of one op lie side by side, as ops expect it."""
        if not outs:
            return
        widths = [out.shape[1] for out in outs]
        joined = np.zeros((outs[0].shape[0], sum(widths)), np.float32)
        for out, columns in zip(outs, np.split(joined, np.cumsum(widths)[:-1], 1), strict=True):
            self._arrays[out.id] = columns

    def words(self, value: Value, /) -> F32:
        """[R, N] as f32, integers as their bits."""
        return self._arrays[value.id]

    def cache(self, cache: Cache, /) -> tuple[F32, ...]:
        """Its arrays, slots first."""
        storage = self._oracle.caches[cache.name]
        return tuple(np.moveaxis(array, storage.slot_axis, 0) for array in storage.arrays)

    def run(self, step: I32, /) -> None:
        groups = tuple(
            g for g in self._oracle.groups.values() if g.name in self.layout.table_entries
        )
        self.records[:] = 0
        with np.errstate(over="ignore", invalid="ignore"):
            self._run(Step(self.layout, step, self.carry.token, groups))

    # What the ops' closures ask of a plan

    def array(self, value: Value) -> NDArray[np.generic]:
        array = self._arrays[value.id]
        return array.view(np.int32) if value.dtype == "i32" else array

    def scratch(self, size: int) -> F32:
        return self._oracle.arena.take_scratch(size)
