"""The one decode call for a stored weight, whatever its format: blocks or a scheme of tensors."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import cast

import numpy as np
from numpy.typing import NDArray

from zllm.quant import apart, block_scaled, formats, packed_int, transposed
from zllm.quant.stored import EncodedWeight, StoredWeight

F32 = NDArray[np.float32]
SchemeDecoder = Callable[[EncodedWeight, int, int, F32], None]

# Elements decoded at a time, so that a scheme's intermediate arrays stay small.
CHUNK_ELEMENTS = 1 << 20

# Weights of several tensors. Each decoder fills out [count, columns] with rows first … of `data`.
SCHEMES: dict[str, SchemeDecoder] = {
    "scaled_e4m3": block_scaled.decode_e4m3,
    "scaled_e5m2": block_scaled.decode_e5m2,
    "scaled_e2m1": block_scaled.decode_e2m1,
    "scaled_i8": block_scaled.decode_i8,
    "gptq": packed_int.decode_gptq,
    "awq": packed_int.decode_awq,
    "packed_int": packed_int.decode_packed,
    "transposed": transposed.decode_transposed,
    "apart": apart.decode_apart,
}


def has_codec(format: str) -> bool:
    return format in formats.FORMATS or format in SCHEMES


def row_count(shape: tuple[int, ...]) -> int:
    """Rows of a weight: all axes but the last; a vector or scalar is one row."""
    return math.prod(shape[:-1])


def decode_rows(weight: StoredWeight, first: int, count: int, out: F32 | None = None) -> F32:
    """Rows first … first + count as f32 [count, columns], into `out` if given (C-contiguous).

    ValueError on an unknown format, rows outside the weight or an `out` that does not fit.
    """
    columns = weight.shape[-1] if weight.shape else 1
    if first < 0 or count < 0 or first + count > row_count(weight.shape):
        raise ValueError(
            f"rows {first}..{first + count} wanted, a weight of shape {list(weight.shape)} has"
            f" {row_count(weight.shape)}"
        )
    if weight.format not in SCHEMES:
        row_bytes = formats.row_bytes(weight.format, columns)
        data = weight.data.read(first * row_bytes, count * row_bytes)
        return formats.decode(weight.format, data, columns, out)
    encoded = cast(EncodedWeight, weight)
    out = formats.checked_out(out, count, columns)
    step = max(1, CHUNK_ELEMENTS // columns) if columns else 1
    for row in range(0, count if columns else 0, step):
        taken = min(step, count - row)
        SCHEMES[weight.format](
            encoded, encoded.first_row + first + row, taken, out[row : row + taken]
        )
    return out


def decode_all(weight: StoredWeight) -> F32:
    """The whole weight as f32, in its own shape."""
    return decode_rows(weight, 0, row_count(weight.shape)).reshape(weight.shape)
