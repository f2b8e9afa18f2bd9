"""GGUF files, versions 2 and 3, little endian (ggml `docs/gguf.md`).

Every number in the file is distrusted.
"""

from __future__ import annotations

import struct
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from zllm.errors import LoadError
from zllm.weight.byte_source import ByteSource, TensorBytes
from zllm.weight.gguf_types import ARRAY, SCALAR_TYPES, STRING, TENSOR_TYPES, TensorType
from zllm.weight.linear_weight import OneTensor, stored

MAGIC = b"GGUF"
DEFAULT_ALIGNMENT = 32  # gguf.md, general.alignment
MAX_DIMS = 4  # ggml.h: GGML_MAX_DIMS
MAX_KEY_BYTES = 65535  # gguf.md: keys are at most 2^16 - 1 bytes
# Ours: far above real files, far below what would hurt.
MAX_TENSORS = 1 << 20
MAX_KEYS = 1 << 20
MAX_STRING_BYTES = 1 << 24
MAX_ARRAY_ELEMENTS = 1 << 22  # all arrays of a file together
MAX_ARRAY_DEPTH = 4
WINDOW_BYTES = 1 << 20

_U32 = struct.Struct("<I").unpack_from
_U64 = struct.Struct("<Q").unpack_from


@dataclass(frozen=True, slots=True)
class Gguf:
    """A parsed header; `tensors` has the file's names and row-major shapes [rows, columns]."""

    source: ByteSource
    version: int
    metadata: dict[str, Any]
    tensors: dict[str, OneTensor]


@dataclass(frozen=True, slots=True)
class _TensorInfo:
    name: str
    shape: tuple[int, ...]  # row-major
    type: TensorType
    offset: int  # from the start of the data section
    size_bytes: int


def open_gguf(source: ByteSource) -> Gguf:
    """Parse metadata and the tensor table; no tensor data is read.

    LoadError names the field or tensor, what was found and what was expected.
    """
    cursor = _Cursor(source)
    version, tensors, keys = _read_preamble(cursor)
    metadata = _read_metadata(cursor, keys)
    alignment = _alignment(source, metadata)
    infos = [_read_tensor_info(cursor) for _ in range(tensors)]
    data_start = -(-cursor.position // alignment) * alignment
    _check_layout(source, infos, alignment, data_start)
    weights = {info.name: _weight(source, info, data_start) for info in infos}
    return Gguf(source, version, metadata, weights)


class _Cursor:
    """Reads forward through a window of the source; `field` says what, for messages."""

    def __init__(self, source: ByteSource) -> None:
        self.source = source
        self.field = "magic"
        self.elements_left = MAX_ARRAY_ELEMENTS
        self._base = 0  # of the window, in the source
        self._window = memoryview(b"")
        self._at = 0  # in the window

    @property
    def position(self) -> int:
        return self._base + self._at

    @property
    def left(self) -> int:
        return self.source.size_bytes - self.position

    def error(self, text: str) -> LoadError:
        return LoadError(f"{self.source.name}: {self.field}: {text}")

    def take(self, size: int) -> memoryview:
        """The next `size` bytes."""
        start = self._at
        if start + size > len(self._window):
            self._refill(size)
            start = 0
        self._at = start + size
        return self._window[start : self._at]

    def _refill(self, size: int) -> None:
        if size > self.left:
            raise self.error(
                f"needs {size} bytes at {self.position}, the file has {self.left} left"
            )
        self._base, self._at = self.position, 0
        self._window = self.source.read(self._base, min(self.left, max(size, WINDOW_BYTES)))

    def u32(self) -> int:
        value: int = _U32(self.take(4))[0]
        return value

    def u64(self) -> int:
        value: int = _U64(self.take(8))[0]
        return value

    def string(self, limit: int = MAX_STRING_BYTES) -> str:
        size: int = _U64(self.take(8))[0]
        if size > limit:
            raise self.error(f"a string of {size} bytes, at most {limit} are allowed")
        try:
            return str(self.take(size), "utf-8")
        except UnicodeDecodeError as error:
            raise self.error(f"a string is not valid UTF-8: {error.reason}") from None

    def strings(self, count: int) -> list[str]:
        """The next `count` strings: a vocabulary's, so without a call for each."""
        found: list[str] = []
        while len(found) < count:
            window, at, end = self._window, self._at, len(self._window)
            with suppress(UnicodeDecodeError):
                while len(found) < count and at + 8 <= end:
                    stop = at + 8 + _U64(window, at)[0]
                    if stop > end:
                        break
                    found.append(str(window[at + 8 : stop], "utf-8"))
                    at = stop
            self._at = at
            if len(found) < count:  # one that goes beyond the window, or is wrong
                found.append(self.string())
        return found

    def count(self, item_bytes: int, limit: int, what: str) -> int:
        """A count whose items, `item_bytes` each at least, must still fit in the file."""
        count = self.u64()
        if count > limit:
            raise self.error(f"{count} {what}, at most {limit} are allowed")
        if count * item_bytes > self.left:
            raise self.error(
                f"{count} {what} cannot fit in the {self.left} bytes left; it may be cut off"
            )
        return count


def _read_preamble(cursor: _Cursor) -> tuple[int, int, int]:
    """(version, number of tensors, number of metadata keys)."""
    magic = bytes(cursor.take(4))
    if magic != MAGIC:
        raise cursor.error(f"found {magic!r}, expected {MAGIC!r}: this is not a GGUF file")
    cursor.field = "version"
    version = cursor.u32()
    if version and version & 0xFFFF == 0:
        raise cursor.error("the file is big endian; only little-endian GGUF is supported")
    if version not in (2, 3):
        raise cursor.error(f"found {version}, supported are 2 and 3; convert the model again")
    cursor.field = "tensor_count"
    tensors = cursor.count(24, MAX_TENSORS, "tensors")  # name length, dims, type, offset
    cursor.field = "metadata_kv_count"
    return version, tensors, cursor.count(13, MAX_KEYS, "keys")  # key length, type, one byte


def _read_metadata(cursor: _Cursor, keys: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for index in range(keys):
        cursor.field = f"metadata key {index}"
        key = cursor.string(MAX_KEY_BYTES)
        if key in metadata:
            raise cursor.error(f"{key!r} appears twice")
        cursor.field = f"metadata {key!r}"
        metadata[key] = _read_value(cursor, cursor.u32(), 0)
    return metadata


def _read_value(cursor: _Cursor, kind: int, depth: int) -> Any:
    if kind == STRING:
        return cursor.string()
    if kind == ARRAY:
        return _read_array(cursor, depth + 1)
    return _read_scalars(cursor, kind, 1)[0]


def _read_array(cursor: _Cursor, depth: int) -> list[Any]:
    if depth > MAX_ARRAY_DEPTH:
        raise cursor.error(f"arrays are nested deeper than {MAX_ARRAY_DEPTH}")
    kind = cursor.u32()
    # The least an element can take: a string its length, an array its type and length.
    item_bytes = {STRING: 8, ARRAY: 12}.get(kind) or _scalar_type(cursor, kind).itemsize
    count = cursor.count(item_bytes, cursor.elements_left, "array elements")
    cursor.elements_left -= count
    if kind == STRING:
        return cursor.strings(count)
    if kind == ARRAY:
        return [_read_array(cursor, depth + 1) for _ in range(count)]
    return _read_scalars(cursor, kind, count)


def _scalar_type(cursor: _Cursor, kind: int) -> np.dtype[Any]:
    code = SCALAR_TYPES.get(kind)
    if code is None:
        raise cursor.error(f"unknown value type {kind}, expected 0..12")
    return np.dtype(code)


def _read_scalars(cursor: _Cursor, kind: int, count: int) -> list[Any]:
    dtype = _scalar_type(cursor, kind)
    raw = cursor.take(count * dtype.itemsize)
    if dtype.kind == "b" and max(raw, default=0) > 1:
        raise cursor.error("a bool is neither 0 nor 1")
    values: list[Any] = np.frombuffer(raw, dtype).tolist()
    return values


def _alignment(source: ByteSource, metadata: dict[str, Any]) -> int:
    found = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    valid = type(found) is int and 0 < found <= 1 << 31
    if not valid or (found % 8 and found & (found - 1)):
        raise LoadError(
            f"{source.name}: general.alignment: found {found!r}, expected a power of two or a"
            " multiple of 8"
        )
    return int(found)


def _read_tensor_info(cursor: _Cursor) -> _TensorInfo:
    cursor.field = "tensor table"
    name = cursor.string(MAX_KEY_BYTES)
    cursor.field = f"tensor {name!r}"
    dims = cursor.u32()
    if dims > MAX_DIMS:
        raise cursor.error(f"{dims} dimensions, at most {MAX_DIMS} are allowed")
    shape = tuple(cursor.u64() for _ in range(dims))[::-1]
    number = cursor.u32()
    kind = TENSOR_TYPES.get(number)
    if kind is None:
        raise cursor.error(f"unknown tensor type {number}")
    return _TensorInfo(name, shape, kind, cursor.u64(), _size_bytes(cursor, shape, kind))


def _size_bytes(cursor: _Cursor, shape: tuple[int, ...], kind: TensorType) -> int:
    columns = shape[-1] if shape else 1
    if columns % kind.block_elements:
        raise cursor.error(
            f"rows of {columns} elements, {kind.name} needs a multiple of {kind.block_elements}"
        )
    blocks = columns // kind.block_elements
    for dim in shape[:-1]:
        blocks *= dim
    return blocks * kind.block_bytes


def _check_layout(
    source: ByteSource, infos: list[_TensorInfo], alignment: int, data_start: int
) -> None:
    names: set[str] = set()
    end, last = 0, ""
    for info in sorted(infos, key=lambda info: (info.offset, info.size_bytes)):
        where = f"{source.name}: tensor {info.name!r}"
        if info.name in names:
            raise LoadError(f"{where}: the name appears twice")
        names.add(info.name)
        if info.offset % alignment:
            raise LoadError(
                f"{where}: offset {info.offset} is no multiple of alignment {alignment}"
            )
        room = max(source.size_bytes - data_start, 0)
        if info.offset + info.size_bytes > room:
            raise LoadError(
                f"{where}: needs {info.size_bytes} bytes at data offset {info.offset}, the file has"
                f" {room} bytes of data; it may be cut off"
            )
        if info.size_bytes and info.offset < end:
            raise LoadError(f"{where}: data at offset {info.offset} overlaps tensor {last!r}")
        if info.size_bytes:
            end, last = info.offset + info.size_bytes, info.name


def _weight(source: ByteSource, info: _TensorInfo, data_start: int) -> OneTensor:
    data = TensorBytes(source, data_start + info.offset, info.size_bytes)
    return stored(info.type.name, info.shape, data)
