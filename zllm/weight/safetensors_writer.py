"""Writes safetensors files (huggingface/safetensors README, "Format")."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

DTYPES = {"float32": "F32", "float16": "F16", "int64": "I64", "int32": "I32", "uint8": "U8"}
ALIGNMENT = 8  # the header is padded with spaces, so that data begins aligned


def write_safetensors(path: Path, tensors: Mapping[str, NDArray[Any]]) -> None:
    """One file with `tensors` in order, each under its own dtype (one of `DTYPES`)."""
    header: dict[str, Any] = {}
    end = 0
    for name, array in tensors.items():
        begin, end = end, end + array.nbytes
        dtype = DTYPES[array.dtype.name]
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [begin, end]}
    raw = json.dumps(header).encode()
    raw += b" " * (-len(raw) % ALIGNMENT)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(raw)) + raw)
        for array in tensors.values():
            little = array.astype(array.dtype.newbyteorder("<"), copy=False)
            file.write(np.ascontiguousarray(little).tobytes())
