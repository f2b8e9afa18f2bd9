"""A weight as the file holds it: shape, encoding and where its bytes are; nothing is decoded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class Bytes(Protocol):
    """The bytes of one tensor inside a byte source."""

    @property
    def size_bytes(self) -> int: ...

    def read(self, offset_bytes: int = 0, size_bytes: int | None = None, /) -> memoryview:
        """A range of the tensor; a view of the mapped file where the source allows."""
        ...


@dataclass(frozen=True, slots=True)
class F32:
    shape: tuple[int, ...]
    data: Bytes


@dataclass(frozen=True, slots=True)
class F16:
    shape: tuple[int, ...]
    data: Bytes


@dataclass(frozen=True, slots=True)
class Bf16:
    shape: tuple[int, ...]
    data: Bytes


@dataclass(frozen=True, slots=True)
class Quantized:
    """Blocks along the last axis, row after row; `format` names a codec of `zllm.quant`."""

    shape: tuple[int, ...]
    data: Bytes
    format: str  # "q4_0", "q4_1", "q8_0", "q6_k", …


LinearWeight = F32 | F16 | Bf16 | Quantized


def format_of(weight: LinearWeight) -> str:
    """The name of the weight's codec in `zllm.quant.formats`."""
    match weight:
        case F32():
            return "f32"
        case F16():
            return "f16"
        case Bf16():
            return "bf16"
        case Quantized(format=format):
            return format


def stored(format: str, shape: tuple[int, ...], data: Bytes) -> LinearWeight:
    """The union's member of a format name; the inverse of `format_of`."""
    if format == "f32":
        return F32(shape, data)
    if format == "f16":
        return F16(shape, data)
    if format == "bf16":
        return Bf16(shape, data)
    return Quantized(shape, data, format)
