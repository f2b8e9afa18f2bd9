"""Codes that stand for NaN: a weight that holds one is refused when it is loaded.

FP8 E4M3 has two of them and no infinities [2209.05433]; an E8M0 scale has one (OCP Microscaling
Formats v1.0, section 5.4.1). One NaN poisons every row it meets, and a sort differently on every
device.
"""

from __future__ import annotations

from typing import cast

import numpy as np

from zllm.errors import LoadError
from zllm.quant import formats
from zllm.quant.float8 import E4M3, E5M2
from zllm.quant.stored import EncodedWeight, StoredWeight, floats_of
from zllm.quant.weights import SCHEMES, row_count

CHUNK_BYTES = 1 << 23

_CODES = {"scaled_e4m3": E4M3, "f8_e4m3": E4M3, "scaled_e5m2": E5M2, "f8_e5m2": E5M2}


def refuse_nan(name: str, weight: StoredWeight) -> None:
    """LoadError, naming the tensor and the element, if an 8-bit code or a scale is NaN."""
    if weight.format in _CODES:
        _check_codes(name, weight)
    if weight.format not in SCHEMES:
        return
    for part, tensor in cast(EncodedWeight, weight).aux.items():
        if tensor.format in formats.FLOATS and np.isnan(floats_of(tensor)).any():
            raise LoadError(f"tensor {_full_name(name, weight)}: its {part} holds a NaN")


def _check_codes(name: str, weight: StoredWeight) -> None:
    columns = weight.shape[-1] if weight.shape else 1
    first = getattr(weight, "first_row", 0) * columns
    is_nan = np.isnan(_CODES[weight.format])
    size = row_count(weight.shape) * columns
    for at in range(0, size, CHUNK_BYTES):
        data = weight.data.read(first + at, min(CHUNK_BYTES, size - at))
        codes = np.frombuffer(data, np.uint8)
        found = is_nan[codes]
        if found.any():
            place = int(found.argmax())
            row, column = divmod(at + place, columns)
            raise LoadError(
                f"tensor {_full_name(name, weight)}: the code of element [{row}, {column}] is"
                f" 0x{codes[place]:02X}, a NaN"
            )


def _full_name(name: str, weight: StoredWeight) -> str:
    stored = getattr(weight, "name", "")
    return f"{stored!r} ({name})" if stored and stored != name else repr(name)
