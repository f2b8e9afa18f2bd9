"""A weight as the file holds it: shape, encoding and where its bytes are. Nothing is decoded here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class Bytes(Protocol):
    """The bytes of one tensor inside a byte source."""

    size_bytes: int

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
