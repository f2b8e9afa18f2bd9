"""Resident weights of the oracle: one f32 array, or the file's own bytes decoded at each use."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from zllm.quant import formats
from zllm.weight.linear_weight import LinearWeight, format_of

F32 = NDArray[np.float32]

# Rows decoded at a time from packed weights: the f32 chunk stays in the second-level cache.
PACKED_CHUNK_ELEMENTS = 1 << 18


class Resident(Protocol):
    shape: tuple[int, ...]
    size_bytes: int

    def product(self, x: F32, out: F32, /) -> None:
        """out = x·wᵀ: [R, D] -> [R, N]."""
        ...

    def rows(self, ids: NDArray[np.int64], out: F32, /) -> None:
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
            target = self.array[first : first + part.shape[0]]
            first += part.shape[0]
            if target.size:
                formats.decode(format_of(part), part.data.read(), part.shape[-1], target)

    def product(self, x: F32, out: F32, /) -> None:
        matrix_product(x, self.array, out)

    def rows(self, ids: NDArray[np.int64], out: F32, /) -> None:
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
        self.size_bytes = sum(part.data.size_bytes for part in parts)
        columns = self.shape[1]
        rows = scratch.size // columns
        if not rows:  # a row wider than the shared chunk
            rows, scratch = 1, np.empty(columns, np.float32)
        self.chunk = scratch[: rows * columns].reshape(rows, columns)

    def product(self, x: F32, out: F32, /) -> None:
        first = 0
        for part in self.parts:
            row_bytes = formats.row_bytes(format_of(part), self.shape[1])
            for row in range(0, part.shape[0], len(self.chunk)):
                count = min(len(self.chunk), part.shape[0] - row)
                data = part.data.read(row * row_bytes, count * row_bytes)
                w = formats.decode(format_of(part), data, self.shape[1], self.chunk[:count])
                out[:, first + row : first + row + count] = x @ w.T
            first += part.shape[0]

    def rows(self, ids: NDArray[np.int64], out: F32, /) -> None:
        for target, row in zip(out, ids.tolist(), strict=True):
            for part in self.parts:
                if row < part.shape[0]:
                    row_bytes = formats.row_bytes(format_of(part), self.shape[1])
                    data = part.data.read(row * row_bytes, row_bytes)
                    formats.decode(format_of(part), data, self.shape[1], target[None])
                    break
                row -= part.shape[0]

    def dense(self) -> F32:
        return Dense(self.parts).array

    def block(self, first: int, count: int, /) -> F32:
        out = np.empty((count, self.shape[1]), np.float32)
        self.rows(np.arange(first, first + count), out)
        return out


def joined_shape(parts: Sequence[LinearWeight]) -> tuple[int, ...]:
    rest = parts[0].shape[1:]
    assert all(part.shape[1:] == rest for part in parts), [part.shape for part in parts]
    return (sum(part.shape[0] for part in parts), *rest)
