"""The 8- and 4-bit float tables against torch's, code by code."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from zllm.quant import float4, float8
from zllm.quant.formats import decode

TABLES = {
    "float8_e4m3fn": ("f8_e4m3", float8.E4M3),
    "float8_e5m2": ("f8_e5m2", float8.E5M2),
    "float8_e8m0fnu": ("f8_e8m0", float8.E8M0),
}


def bits(values: NDArray[np.float32]) -> NDArray[np.uint32]:
    return np.where(np.isnan(values), np.float32(np.nan), values).view(np.uint32)


@pytest.mark.parametrize("dtype", TABLES)
def test_every_code(data_dir: Path, dtype: str) -> None:
    golden = np.load(data_dir / "quant" / "fp8_tables.npz")
    format, table = TABLES[dtype]
    np.testing.assert_array_equal(bits(table[golden["codes"]]), bits(golden[dtype]))
    np.testing.assert_array_equal(
        bits(decode(format, golden["codes"], 256)[0]), bits(golden[dtype])
    )


def test_four_bits(data_dir: Path) -> None:
    golden = np.load(data_dir / "quant" / "fp8_tables.npz")
    np.testing.assert_array_equal(bits(float4.E2M1), bits(golden["e2m1"]))
    # Byte 0x91: element 1 is 0.5, element 9 is -0.5; the low nibble comes first.
    assert float4.PAIRS[0x91].tolist() == [0.5, -0.5]
