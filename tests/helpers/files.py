"""Writers of small model files. Shapes are row-major; nothing is checked, so that tests can lie."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zllm.weight.gguf_types import TENSOR_TYPES

GgufTensor = tuple[str, tuple[int, ...], bytes]  # ggml type name, shape, data
SafetensorsTensor = NDArray[Any] | tuple[str, tuple[int, ...], bytes]  # dtype, shape, data

_GGML_NUMBERS = {kind.name: number for number, kind in TENSOR_TYPES.items()}
_U32, _I32, _F32, _BOOL, _STRING, _ARRAY, _U64 = 4, 5, 6, 7, 8, 9, 10
_PACK = {_U32: "<I", _I32: "<i", _F32: "<f", _BOOL: "<?", _U64: "<Q"}
_DTYPES = {"float32": "F32", "float16": "F16", "float64": "F64", "int32": "I32", "uint8": "U8"}


def write_gguf(
    path: Path,
    metadata: Mapping[str, Any],
    tensors: Mapping[str, GgufTensor],
    *,
    version: int = 3,
    offsets: Mapping[str, int] | None = None,
    gap: int = 0,
) -> Path:
    """Write a GGUF file; `general.alignment` is obeyed, `offsets` overrides the claimed ones.

    Metadata: str, bool, int (u32, else i32, else u64), float (f32) and lists of one of them.
    gap: bytes of nothing before the first tensor, which take no room on most disks.
    """
    head, data = _gguf_parts(metadata, tensors, version, offsets or {}, gap)
    with path.open("wb") as file:
        file.write(head)
        file.seek(gap, os.SEEK_CUR)
        file.write(data)
    return path


def gguf_bytes(
    metadata: Mapping[str, Any],
    tensors: Mapping[str, GgufTensor],
    *,
    version: int = 3,
    offsets: Mapping[str, int] | None = None,
) -> bytes:
    """The bytes of `write_gguf`."""
    return b"".join(_gguf_parts(metadata, tensors, version, offsets or {}, 0))


def _gguf_parts(
    metadata: Mapping[str, Any],
    tensors: Mapping[str, GgufTensor],
    version: int,
    offsets: Mapping[str, int],
    gap: int,
) -> tuple[bytes, bytes]:
    alignment = int(metadata.get("general.alignment", 32)) or 1
    table, data = b"", b""
    for name, (kind, shape, raw) in tensors.items():
        offset = offsets.get(name, gap + len(data))
        table += gguf_tensor_info(name, shape, _GGML_NUMBERS[kind], offset)
        data += _padded(raw, alignment)
    keys = b"".join(gguf_string(key) + _typed(value) for key, value in metadata.items())
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata)) + keys + table
    return _padded(head, alignment), data


def gguf_string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def gguf_tensor_info(name: str, shape: tuple[int, ...], type_number: int, offset: int) -> bytes:
    dims = struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
    return gguf_string(name) + dims + struct.pack("<IQ", type_number, offset)


def write_safetensors(path: Path, tensors: Mapping[str, SafetensorsTensor]) -> Path:
    """Write a safetensors file; arrays are stored under their own dtype, tuples as they are."""
    header: dict[str, Any] = {}
    data = b""
    for name, tensor in tensors.items():
        if isinstance(tensor, np.ndarray):
            tensor = (_DTYPES[tensor.dtype.name], tensor.shape, tensor.tobytes())
        dtype, shape, raw = tensor
        ends = [len(data), len(data) + len(raw)]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": ends}
        data += raw
    path.write_bytes(safetensors_bytes(json.dumps(header), data))
    return path


def safetensors_bytes(header: str, data: bytes) -> bytes:
    raw = header.encode()
    return struct.pack("<Q", len(raw)) + raw + data


def _padded(raw: bytes, alignment: int) -> bytes:
    return raw + bytes(-len(raw) % alignment)


def _typed(value: Any) -> bytes:
    kind = _kind(value)
    return struct.pack("<I", kind) + _payload(kind, value)


def _kind(value: Any) -> int:
    if isinstance(value, bool):
        return _BOOL
    if isinstance(value, int):
        return _U32 if 0 <= value < 1 << 32 else _I32 if value < 0 else _U64
    return {str: _STRING, float: _F32, list: _ARRAY}[type(value)]


def _payload(kind: int, value: Any) -> bytes:
    if kind == _STRING:
        return gguf_string(value)
    if kind == _ARRAY:
        # One kind for all: a negative integer makes them signed.
        inner = max(map(_kind, value), default=_U32)
        return struct.pack("<IQ", inner, len(value)) + b"".join(_payload(inner, v) for v in value)
    return struct.pack(_PACK[kind], value)
