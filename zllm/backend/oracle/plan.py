"""A recording compiled for NumPy: arrays placed once, then a list of closures run in order."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from zllm.backend.contract import Op, Recording, RecordLayout, Round, Value
from zllm.backend.oracle import ops
from zllm.backend.oracle.step import Step

if TYPE_CHECKING:
    from zllm.backend.oracle.backend import Done, OracleBackend

F32 = NDArray[np.float32]


class Arena:
    """Activation memory of all plans: fresh pages cost more than the arithmetic of a short op."""

    def __init__(self) -> None:
        self._arrays: list[F32] = []
        self._scratch = np.empty(0, np.float32)

    def take_scratch(self, size: int) -> F32:
        if self._scratch.size < size:
            self._scratch = np.empty(size, np.float32)
        return self._scratch[:size]

    def take(self, index: int, size: int) -> F32:
        if index == len(self._arrays):
            self._arrays.append(np.empty(size, np.float32))
        elif self._arrays[index].size < size:
            self._arrays[index] = np.empty(size, np.float32)  # plans made before keep the old one
        return self._arrays[index][:size]

    @property
    def size_bytes(self) -> int:
        return self._scratch.nbytes + sum(array.nbytes for array in self._arrays)


class OraclePlan:
    """Values whose lives do not overlap share memory; nothing is allocated for them per round."""

    def __init__(self, recording: Recording, backend: OracleBackend) -> None:
        self.recording = recording
        self.layout = recording.layout
        self._backend = backend
        key = recording.key
        self.records = np.zeros((key.seqs, RecordLayout(key.top_logprobs).words), np.int32)
        self.logits: F32 | None = None
        self.arrays: dict[int, F32] = {}
        self._allocated = 0
        self._place(recording.ops)
        self._runs = [ops.LOWER[op.name](op, self, backend) for op in recording.ops]

    def array(self, value: Value) -> F32:
        return self.arrays[value.id]

    def submit(self, step: NDArray[np.int32], /) -> Done:
        from zllm.backend.oracle.backend import Done

        backend = self._backend
        groups = tuple(backend.groups.values())
        words = Step(self.layout, step.copy(), backend.carry.token, groups)
        self.records[:] = 0
        # Overflow to inf has a meaning (σ(-∞) = 0) or ends in the record's not-finite flag.
        with np.errstate(over="ignore", invalid="ignore"):
            for op, run in zip(self.recording.ops, self._runs, strict=True):
                run(words)
                if backend.observer is not None:
                    backend.observer(op, [self.array(out) for out in op.outs])
        if self.recording.key.emit == "none":
            return Done(Round(memoryview(b"")))
        logits = None if self.logits is None else self.logits.copy()
        return Done(Round(self.records.copy().data, logits))

    def _place(self, recorded: tuple[Op, ...]) -> None:
        """Give every value an array [R, N]; outputs of one product lie side by side."""
        last_use: dict[int, int] = {}
        for at, op in enumerate(recorded):
            for value in (*op.ins, *op.outs):
                if isinstance(value, Value):
                    last_use[value.id] = at
        free: dict[int, list[F32]] = defaultdict(list)
        live: list[tuple[int, F32]] = []  # (last use, flat memory)
        for at, op in enumerate(recorded):
            if op.outs:
                size = sum(out.shape[0] * out.shape[1] for out in op.outs)
                memory = free[size].pop() if free[size] else self.allocate(size)
                joined = memory.reshape(op.outs[0].shape[0], -1)
                column = 0
                for out in op.outs:
                    columns = joined[:, column : column + out.shape[1]]
                    self.arrays[out.id] = columns.view(np.int32) if out.dtype == "i32" else columns
                    column += out.shape[1]
                live.append((max(last_use[out.id] for out in op.outs), memory))
            for entry in [entry for entry in live if entry[0] == at]:
                live.remove(entry)
                free[entry[1].size].append(entry[1])

    def scratch(self, size: int) -> F32:
        """Memory for the inside of one op; ops run one at a time, so they share it."""
        return self._backend.arena.take_scratch(size)

    def allocate(self, size: int) -> F32:
        """The plan's next f32 array; plans run one at a time, so they share their memory."""
        self._allocated += 1
        return self._backend.arena.take(self._allocated - 1, size)
