"""Matrices stored input by input [D, N], where a weight's rows are outputs [N, D]."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from zllm.quant import formats
from zllm.quant.stored import EncodedWeight


@dataclass(frozen=True, slots=True)
class TransposedSpec:
    """Matrices [columns, rows] one after the other, elements of `format` one by one."""

    format: str
    columns: int  # D
    rows: int  # N of one matrix

    def __post_init__(self) -> None:
        if formats.lookup(self.format).block_elements != 1:
            raise ValueError(f"{self.format}: blocks of several elements cannot be transposed")


def decode_transposed(
    weight: EncodedWeight, first: int, count: int, out: NDArray[np.float32]
) -> None:
    """Rows first … first + count of all matrices' outputs -> out [count, D]."""
    spec: TransposedSpec = weight.spec
    row_bytes = formats.row_bytes(spec.format, spec.rows)
    done = 0
    while done < count:
        matrix, row = divmod(first + done, spec.rows)
        taken = min(count - done, spec.rows - row)
        data = weight.data.read(matrix * spec.columns * row_bytes, spec.columns * row_bytes)
        codes = np.frombuffer(data, np.uint8).reshape(spec.columns, spec.rows, -1)
        wanted = np.ascontiguousarray(codes[:, row : row + taken])
        out[done : done + taken] = formats.decode(spec.format, wanted, taken).T
        done += taken
