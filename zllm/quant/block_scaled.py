"""Codes times a grid of scales: FP8 by block, row or tensor, MXFP8, MXFP4, NVFP4, INT8.

Layouts: transformers `integrations/finegrained_fp8.py` (weight_scale_inv) and
`integrations/mxfp4.py` (blocks and scales); OCP Microscaling Formats v1.0; NVIDIA ModelOpt
`NVFP4QTensor`; vllm-project/compressed-tensors (float-quantized, nvfp4-pack-quantized, …).

aux: `scale` [rows of the grid, columns of the grid]; `global` one float, for NVFP4; `zero` like
`scale`, for integers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from zllm.quant.float4 import PAIRS
from zllm.quant.float8 import E4M3, E5M2
from zllm.quant.stored import EncodedWeight, floats_of

F32 = NDArray[np.float32]
Codes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class BlockScaleSpec:
    """One scale per block of rows x columns; the last block of a dimension may be partial.

    `matrix_rows`: rows of one matrix; in a stack of matrices each begins a new row of the grid.
    `divide_global`: `scale` is divided by the one global factor, else multiplied by it.
    """

    rows: int
    columns: int
    matrix_rows: int
    divide_global: bool = False


def grid_shape(spec: BlockScaleSpec, rows: int, columns: int) -> tuple[int, int]:
    """The grid of a stack of `rows` x `columns`: partial blocks count as whole ones."""
    matrices = rows // spec.matrix_rows if spec.matrix_rows else 0
    return matrices * -(-spec.matrix_rows // spec.rows), -(-columns // spec.columns)


def decode_e4m3(weight: EncodedWeight, first: int, count: int, out: F32) -> None:
    """W = e4m3(code) · scale, in float32."""
    _decode(weight, first, count, out, lambda codes, values: np.take(E4M3, codes, out=values))


def decode_e5m2(weight: EncodedWeight, first: int, count: int, out: F32) -> None:
    """W = e5m2(code) · scale, in float32."""
    _decode(weight, first, count, out, lambda codes, values: np.take(E5M2, codes, out=values))


def decode_e2m1(weight: EncodedWeight, first: int, count: int, out: F32) -> None:
    """W = e2m1(code) · scale; a byte holds two neighbours, the low nibble first."""
    _decode(weight, first, count, out, _take_pairs, elements_per_byte=2)


def decode_i8(weight: EncodedWeight, first: int, count: int, out: F32) -> None:
    """W = (code - zero) · scale, in float32."""
    _decode(weight, first, count, out, lambda codes, values: np.copyto(values, codes.view(np.int8)))


def _take_pairs(codes: Codes, values: F32) -> None:
    np.take(PAIRS, codes, axis=0, out=values.reshape(*codes.shape, 2))


def _decode(
    weight: EncodedWeight,
    first: int,
    count: int,
    out: F32,
    take: Callable[[Codes, F32], object],
    elements_per_byte: int = 1,
) -> None:
    columns = weight.shape[-1]
    row_bytes = columns // elements_per_byte
    data = weight.data.read(first * row_bytes, count * row_bytes)
    take(np.frombuffer(data, np.uint8).reshape(count, row_bytes), out)
    spec: BlockScaleSpec = weight.spec
    with np.errstate(over="ignore", invalid="ignore"):
        if "zero" in weight.aux:
            zero = _rows_of(weight, "zero", _grid_rows(spec, first, count))
            out -= _spread(zero, spec.columns, columns)
        out *= _spread(scale_rows(weight, first, count), spec.columns, columns)


def scale_rows(weight: EncodedWeight, first: int, count: int) -> F32:
    """The scales of rows first … first + count: [count, columns of the grid]."""
    spec: BlockScaleSpec = weight.spec
    scale = _rows_of(weight, "scale", _grid_rows(spec, first, count))
    if "global" not in weight.aux:
        return scale
    factor = floats_of(weight.aux["global"]).reshape(())
    with np.errstate(over="ignore", invalid="ignore"):
        return scale / factor if spec.divide_global else scale * factor


def _grid_rows(spec: BlockScaleSpec, first: int, count: int) -> NDArray[np.int64]:
    """The grid's row of each of the weight's rows."""
    matrix, row = np.divmod(np.arange(first, first + count), spec.matrix_rows)
    found: NDArray[np.int64] = matrix * -(-spec.matrix_rows // spec.rows) + row // spec.rows
    return found


def _rows_of(weight: EncodedWeight, name: str, grid_row: NDArray[np.int64]) -> F32:
    """[count, columns of the grid] f32."""
    spec: BlockScaleSpec = weight.spec
    grid = floats_of(weight.aux[name])
    return grid.reshape(-1, -(-weight.shape[-1] // spec.columns))[grid_row]


def _spread(grid: F32, block: int, columns: int) -> F32:
    """[count, blocks] -> [count, columns]."""
    return grid if grid.shape[1] == 1 else np.repeat(grid, block, axis=1)[:, :columns]
