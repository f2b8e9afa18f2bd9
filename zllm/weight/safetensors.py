"""Safetensors files: a JSON header, then data (huggingface/safetensors README, "Format")."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import Any

from zllm.errors import LoadError
from zllm.weight.byte_source import ByteSource, TensorBytes
from zllm.weight.json_file import parse_object
from zllm.weight.linear_weight import OneTensor, stored

MAX_HEADER_BYTES = 100_000_000  # safetensors, tensor.rs: MAX_HEADER_SIZE
MAX_DIMS = 32  # ours: products of counts stay small numbers

# safetensors, tensor.rs: Dtype and its bitsize; the name of the codec is the dtype in lower case.
DTYPE_BITS = {
    "BOOL": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "U8": 8,
    "I8": 8,
    "F8_E5M2": 8,
    "F8_E4M3": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "C64": 64,
    "F64": 64,
    "I64": 64,
    "U64": 64,
}


@dataclass(frozen=True, slots=True)
class Safetensors:
    """A parsed header."""

    source: ByteSource
    metadata: dict[str, str]
    tensors: dict[str, OneTensor]


@dataclass(frozen=True, slots=True)
class _Entry:
    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def open_safetensors(source: ByteSource) -> Safetensors:
    """Parse the header; no tensor data is read.

    LoadError names the tensor or field, what was found and what was expected. As the format says,
    the data is covered exactly: no overlap, no hole, nothing after the last tensor.
    """
    header, data_start = _read_header(source)
    metadata = _metadata(source, header.pop("__metadata__", {}))
    entries = [_entry(source, name, fields) for name, fields in header.items()]
    _check_cover(source, entries, source.size_bytes - data_start)
    return Safetensors(source, metadata, {e.name: _weight(source, e, data_start) for e in entries})


def _read_header(source: ByteSource) -> tuple[dict[str, Any], int]:
    if source.size_bytes < 8:
        raise LoadError(f"{source.name}: {source.size_bytes} bytes, no room for a header length")
    (size,) = struct.unpack("<Q", source.read(0, 8))
    limit = min(MAX_HEADER_BYTES, source.size_bytes - 8)
    if size > limit:
        raise LoadError(
            f"{source.name}: header of {size} bytes, at most {limit} are possible here; the file is"
            " cut off or not safetensors"
        )
    raw = bytes(source.read(8, size))
    if not raw.startswith(b"{"):
        raise LoadError(f"{source.name}: the header starts with {raw[:1]!r}, expected b'{{'")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise LoadError(f"{source.name}: the header is not UTF-8: {error.reason}") from None
    return parse_object(text, f"{source.name}: header", unique_keys=True), 8 + size


def _metadata(source: ByteSource, found: Any) -> dict[str, str]:
    if not isinstance(found, dict) or not all(isinstance(text, str) for text in found.values()):
        raise LoadError(f"{source.name}: __metadata__: expected an object of strings")
    return found


def _entry(source: ByteSource, name: str, found: Any) -> _Entry:
    where = f"{source.name}: tensor {name!r}"
    if not isinstance(found, dict) or set(found) != {"dtype", "shape", "data_offsets"}:
        raise LoadError(f"{where}: expected dtype, shape and data_offsets, got {found!r:.200}")
    dtype, shape, offsets = found["dtype"], found["shape"], found["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        raise LoadError(f"{where}: unknown dtype {dtype!r:.50}")
    if not _are_counts(shape):
        raise LoadError(f"{where}: shape {shape!r:.200}, expected a list of counts")
    if not _are_counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise LoadError(f"{where}: data_offsets {offsets!r:.200}, expected [begin, end]")
    entry = _Entry(name, dtype, tuple(shape), *offsets)
    bits = math.prod(entry.shape) * DTYPE_BITS[dtype]
    if bits != 8 * (entry.end - entry.begin):
        raise LoadError(
            f"{where}: {dtype} {shape} takes {-(-bits // 8)} bytes, data_offsets give"
            f" {entry.end - entry.begin}"
        )
    return entry


def _are_counts(found: Any) -> bool:
    if not isinstance(found, list) or len(found) > MAX_DIMS:
        return False
    return all(type(count) is int and 0 <= count < 1 << 63 for count in found)


def _check_cover(source: ByteSource, entries: list[_Entry], room: int) -> None:
    end, last = 0, "the header"
    for entry in sorted(entries, key=lambda entry: (entry.begin, entry.end)):
        if entry.begin != end:
            kind = "overlaps" if entry.begin < end else "leaves a hole after"
            raise LoadError(
                f"{source.name}: tensor {entry.name!r}: data at {entry.begin} {kind} {last}, which"
                f" ends at {end}"
            )
        if entry.end > room:
            raise LoadError(
                f"{source.name}: tensor {entry.name!r}: data ends at {entry.end}, the file has"
                f" {room} bytes of data; it may be cut off"
            )
        end, last = entry.end, f"tensor {entry.name!r}"
    if end != room:
        raise LoadError(f"{source.name}: the tensors take {end} bytes, the file has {room}")


def _weight(source: ByteSource, entry: _Entry, data_start: int) -> OneTensor:
    data = TensorBytes(source, data_start + entry.begin, entry.end - entry.begin)
    return stored(entry.dtype.lower(), entry.shape, data)
