"""A weight as the file holds it: shape, encoding and where its bytes are; nothing is decoded."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from zllm.quant.formats import row_bytes
from zllm.quant.transposed import TransposedSpec


class Bytes(Protocol):
    """The bytes of one tensor inside a byte source."""

    @property
    def size_bytes(self) -> int: ...

    def read(self, offset_bytes: int = 0, size_bytes: int | None = None, /) -> memoryview:
        """A range of the tensor; a view of the mapped file where the source allows."""
        ...


@dataclass(frozen=True, slots=True)
class _OneTensor:
    shape: tuple[int, ...]
    data: Bytes

    @property
    def size_bytes(self) -> int:
        return self.data.size_bytes


@dataclass(frozen=True, slots=True)
class F32(_OneTensor):
    @property
    def format(self) -> str:
        return "f32"


@dataclass(frozen=True, slots=True)
class F16(_OneTensor):
    @property
    def format(self) -> str:
        return "f16"


@dataclass(frozen=True, slots=True)
class Bf16(_OneTensor):
    @property
    def format(self) -> str:
        return "bf16"


@dataclass(frozen=True, slots=True)
class Quantized(_OneTensor):
    """Blocks along the last axis, row after row; `format` names a codec of `zllm.quant.formats`."""

    format: str  # "q4_0", "q4_1", "q8_0", "q6_k", …


@dataclass(frozen=True, slots=True)
class Encoded:
    """A weight of several tensors, or of another order of axes: a scheme of `zllm.quant.weights`.

    `aux` holds the scheme's further tensors as stored (scales, zero points, …), `spec` its numbers.
    `shape` is the weight's: row i of the weight is row `first_row` + i of what `data` encodes.
    """

    shape: tuple[int, ...]
    data: Bytes  # the codes
    format: str  # "scaled_e4m3", "scaled_e2m1", "gptq", …
    aux: Mapping[str, OneTensor]
    spec: Any  # a frozen dataclass of the scheme's module
    first_row: int = 0
    name: str = field(default="", compare=False)  # the tensor's name in the file, for messages

    @property
    def size_bytes(self) -> int:
        return self.data.size_bytes + sum(part.size_bytes for part in self.aux.values())


OneTensor = F32 | F16 | Bf16 | Quantized
LinearWeight = OneTensor | Encoded


def format_of(weight: LinearWeight) -> str:
    """The name of the weight's codec in `zllm.quant.formats`, or scheme in `zllm.quant.weights`."""
    return weight.format


def stored(format: str, shape: tuple[int, ...], data: Bytes) -> OneTensor:
    """The union's member of a codec's name; the inverse of `format_of`."""
    if format == "f32":
        return F32(shape, data)
    if format == "f16":
        return F16(shape, data)
    if format == "bf16":
        return Bf16(shape, data)
    return Quantized(shape, data, format)


@dataclass(frozen=True, slots=True)
class Window:
    """A range of a tensor's bytes."""

    whole: Bytes = field(repr=False)
    offset_bytes: int
    size_bytes: int

    def read(self, offset_bytes: int = 0, size_bytes: int | None = None, /) -> memoryview:
        size = self.size_bytes - offset_bytes if size_bytes is None else size_bytes
        if offset_bytes < 0 or size < 0 or offset_bytes + size > self.size_bytes:
            raise ValueError(f"range {offset_bytes}+{size} leaves {self.size_bytes} bytes")
        return self.whole.read(self.offset_bytes + offset_bytes, size)


@dataclass(frozen=True, slots=True)
class RepeatedRows:
    """A few rows again and again: what a benchmark's random weights are made of.

    A backend that knows it writes the tile once and copies it on the device.
    """

    tile: bytes = field(repr=False)  # whole rows
    first_byte: int  # of the tile, where the tensor begins: the start of a row
    size_bytes: int

    def read(self, offset_bytes: int = 0, size_bytes: int | None = None, /) -> memoryview:
        size = self.size_bytes - offset_bytes if size_bytes is None else size_bytes
        if offset_bytes < 0 or size < 0 or offset_bytes + size > self.size_bytes:
            raise ValueError(f"range {offset_bytes}+{size} leaves {self.size_bytes} bytes")
        first = (self.first_byte + offset_bytes) % len(self.tile)
        if first + size <= len(self.tile):
            return memoryview(self.tile)[first : first + size]
        rounds = -(-(first + size) // len(self.tile))
        return memoryview(self.tile * rounds)[first : first + size]


def flattened(weight: LinearWeight) -> LinearWeight:
    """[E, …, N, D] -> [E·…·N, D]: the matrices one below the other."""
    return replace(weight, shape=(math.prod(weight.shape[:-1]), weight.shape[-1]))


def rows(weight: LinearWeight, first: int, count: int) -> LinearWeight:
    """Rows first … first + count of a matrix [N, D], as a weight of their own."""
    size, columns = weight.shape
    if first < 0 or count < 0 or first + count > size:
        raise ValueError(f"rows {first}..{first + count} wanted, the matrix has {size}")
    if isinstance(weight, Encoded):
        return replace(weight, shape=(count, columns), first_row=weight.first_row + first)
    per_row = row_bytes(weight.format, columns)
    window = Window(weight.data, first * per_row, count * per_row)
    return replace(weight, shape=(count, columns), data=window)


def transposed(weight: OneTensor, name: str = "") -> Encoded:
    """[…, D, N] as stored -> […, N, D]. ValueError unless elements are stored one by one."""
    *outer, columns, size = weight.shape
    spec = TransposedSpec(weight.format, columns, size)
    return Encoded((*outer, size, columns), weight.data, "transposed", {}, spec, name=name)
