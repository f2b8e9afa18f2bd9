"""Codes that mean NaN are found and named at load; others pass."""

from __future__ import annotations

import numpy as np
import pytest

from tests.helpers.weights import tensor
from zllm.errors import LoadError
from zllm.quant import nan_codes
from zllm.quant.block_scaled import BlockScaleSpec
from zllm.quant.nan_codes import refuse_nan
from zllm.weight.linear_weight import Encoded, rows


def fp8(codes: list[list[int]], scale: float = 1, format: str = "scaled_e4m3") -> Encoded:
    array = np.array(codes, np.uint8)
    aux = {"scale": tensor(np.full((1, 1), scale, np.float32))}
    spec = BlockScaleSpec(*array.shape, matrix_rows=len(array))
    return Encoded(array.shape, tensor(array).data, format, aux, spec, name="file.q.weight")


@pytest.mark.parametrize("code", [0x7F, 0xFF])
def test_nan_code_is_named(code: int) -> None:
    message = (
        rf"'file.q.weight' \(layers.1.q\): the code of element \[1, 0\] is 0x{code:02X}, a NaN"
    )
    with pytest.raises(LoadError, match=message):
        refuse_nan("layers.1.q", fp8([[0, 0x7E], [code, 0xFE]]))


def test_large_codes_are_numbers_in_e4m3_but_not_in_e5m2() -> None:
    refuse_nan("w", fp8([[0x7E, 0xFE], [0x78, 0x7D]]))
    with pytest.raises(LoadError, match=r"\[1, 1\] is 0x7D"):
        refuse_nan("w", fp8([[0x7C, 0xFC], [0x78, 0x7D]], format="scaled_e5m2"))


def test_found_in_later_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nan_codes, "CHUNK_BYTES", 3)
    with pytest.raises(LoadError, match=r"\[3, 1\]"):
        refuse_nan("w", fp8([[0, 0], [0, 0], [0, 0], [0, 0x7F]]))


def test_rows_of_a_slice_alone() -> None:
    whole = fp8([[0x7F, 0], [0, 0], [0, 0xFF]])
    refuse_nan("w", rows(whole, 1, 1))
    with pytest.raises(LoadError, match=r"element \[1, 1\]"):
        refuse_nan("w", rows(whole, 1, 2))


def test_scales() -> None:
    with pytest.raises(LoadError, match="its scale holds a NaN"):
        refuse_nan("w", fp8([[0]], scale=np.nan))
    refuse_nan("w", fp8([[0]], scale=np.inf))


def test_unscaled_codes_and_other_formats() -> None:
    with pytest.raises(LoadError, match=r"tensor 'w': the code of element \[0, 1\]"):
        refuse_nan("w", tensor(np.array([[0, 0x7F]], np.uint8), "f8_e4m3"))
    refuse_nan("w", tensor(np.array([[0, 0x7F]], np.uint8)))
    refuse_nan("w", tensor(np.full((1, 1), np.nan, np.float32)))
