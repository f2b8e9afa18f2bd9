"""RepeatedRows: the bytes of a tensor whose rows come again and again."""

from __future__ import annotations

import numpy as np
import pytest

from zllm.quant.weights import decode_rows
from zllm.weight.linear_weight import F32, RepeatedRows, rows

TILE = np.arange(15, dtype=np.float32).reshape(5, 3)
ROW_BYTES = 12


def repeated(first: int, count: int) -> F32:
    data = RepeatedRows(TILE.tobytes(), first * ROW_BYTES, count * ROW_BYTES)
    return F32((count, 3), data)


@pytest.mark.parametrize("first", [0, 2, 4])
@pytest.mark.parametrize(("at", "count"), [(0, 13), (3, 1), (4, 9), (12, 1), (5, 0)])
def test_ranges(first: int, at: int, count: int) -> None:
    expected = TILE[(first + at + np.arange(count)) % 5]
    np.testing.assert_array_equal(decode_rows(repeated(first, 13), at, count), expected)


def test_rows_of_it_are_a_weight_too() -> None:
    part = rows(repeated(3, 13), 4, 6)
    np.testing.assert_array_equal(decode_rows(part, 1, 5), TILE[(3 + 5 + np.arange(5)) % 5])


@pytest.mark.parametrize(("at", "size"), [(0, 40), (36, 1), (-1, 2)])
def test_nothing_lies_outside(at: int, size: int) -> None:
    with pytest.raises(ValueError, match="leaves 36 bytes"):
        repeated(0, 3).data.read(at, size)


def test_one_tile_of_bytes_is_not_copied() -> None:
    data = repeated(1, 13).data
    assert isinstance(data, RepeatedRows)
    assert data.read(0, 4 * ROW_BYTES).obj is data.tile
