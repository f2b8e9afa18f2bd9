"""Resident weights of the oracle: one f32 array, or the file's own bytes decoded at each use."""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from zllm.quant.weights import decode_rows, row_count
from zllm.weight.linear_weight import LinearWeight

F32 = NDArray[np.float32]

# Rows decoded at a time from packed weights: the f32 chunk stays in the second-level cache.
PACKED_CHUNK_ELEMENTS = 1 << 18


class Resident(Protocol):
    shape: tuple[int, ...]
    size_bytes: int

    def product(self, x: F32, out: F32, first: int = 0, /) -> None:
        """out = x·wᵀ, w from row `first` on as many as out has columns: [R, D] -> [R, n]."""
        ...

    def rows(self, ids: NDArray[np.intp], out: F32, /) -> None:
        """out[i] = w[ids[i]]."""
        ...

    def dense(self) -> F32: ...

    def block(self, first: int, count: int, /) -> F32:
        """Rows first … first + count as f32; valid until the next call."""
        ...


def matrix_product(x: F32, w: F32, out: F32) -> None:
    """out = x·wᵀ. NumPy in Pyodide has no BLAS: there einsum runs four times as fast as dot."""
    if sys.platform == "emscripten":
        np.einsum("rd,nd->rn", x, w, out=out)
    else:
        np.matmul(x, w.T, out=out)


class Dense:
    """f32 [N, D] or [N], decoded once into one array."""

    def __init__(self, parts: Sequence[LinearWeight]) -> None:
        self.shape = joined_shape(parts)
        self.array = np.empty(self.shape, np.float32)
        self.size_bytes = self.array.nbytes
        first = 0
        for part in parts:
            decode_rows(part, 0, row_count(part.shape), self.array[first : first + part.shape[0]])
            first += part.shape[0]

    def product(self, x: F32, out: F32, first: int = 0, /) -> None:
        matrix_product(x, self.array[first : first + out.shape[1]], out)

    def rows(self, ids: NDArray[np.intp], out: F32, /) -> None:
        np.take(self.array, ids, axis=0, out=out)

    def dense(self) -> F32:
        return self.array

    def block(self, first: int, count: int, /) -> F32:
        return self.array[first : first + count]


class Packed:
    """The parts' bytes as they are (a view of the mapped file); each use decodes chunks of rows.

    `scratch` holds one decoded chunk; all weights of a backend share it.
    """

    def __init__(self, parts: Sequence[LinearWeight], scratch: F32) -> None:
        self.shape = joined_shape(parts)
        self.parts = parts
        self._first_rows = [0, *accumulate(part.shape[0] for part in parts)]
        self.size_bytes = sum(part.size_bytes for part in parts)
        columns = self.shape[1]
        rows = scratch.size // columns
        if not rows:  # a row wider than the shared chunk
            rows, scratch = 1, np.empty(columns, np.float32)
        self.chunk = scratch[: rows * columns].reshape(rows, columns)

    def product(self, x: F32, out: F32, first: int = 0, /) -> None:
        for part, row, count in self._runs(first, out.shape[1], len(self.chunk)):
            w = self._decode(part, row, self.chunk[:count])
            matrix_product(x, w, out[:, :count])
            out = out[:, count:]

    def rows(self, ids: NDArray[np.intp], out: F32, /) -> None:
        for target, id in zip(out, ids.tolist(), strict=True):
            for part, row, _ in self._runs(id, 1, 1):
                self._decode(part, row, target[None])

    def _runs(self, first: int, count: int, most: int) -> Iterator[tuple[LinearWeight, int, int]]:
        """Rows first … first + count as runs inside one part: the part, its row, how many."""
        last = first + count
        index = bisect_right(self._first_rows, first) - 1
        while first < last:
            row = first - self._first_rows[index]
            run = min(last - first, self.parts[index].shape[0] - row, most)
            if run:
                yield self.parts[index], row, run
            first += run
            index += row + run == self.parts[index].shape[0]

    def _decode(self, part: LinearWeight, row: int, out: F32) -> F32:
        """Rows row … row + len(out) of a part."""
        return decode_rows(part, row, len(out), out)

    def dense(self) -> F32:
        return Dense(self.parts).array

    def block(self, first: int, count: int, /) -> F32:
        out = np.empty((count, self.shape[1]), np.float32)
        done = 0
        for part, row, run in self._runs(first, count, count):
            self._decode(part, row, out[done : done + run])
            done += run
        return out


def joined_shape(parts: Sequence[LinearWeight]) -> tuple[int, ...]:
    rest = parts[0].shape[1:]
    assert all(part.shape[1:] == rest for part in parts), [part.shape for part in parts]
    return (sum(part.shape[0] for part in parts), *rest)
