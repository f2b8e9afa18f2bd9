"""What the codecs see of a weight: its shape, its format's name and its bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from zllm.quant import formats


class Bytes(Protocol):
    @property
    def size_bytes(self) -> int: ...

    def read(self, offset_bytes: int = 0, size_bytes: int | None = None, /) -> memoryview: ...


class StoredWeight(Protocol):
    """A weight of one tensor; `format` is in `zllm.quant.formats`."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def format(self) -> str: ...

    @property
    def data(self) -> Bytes: ...


class EncodedWeight(StoredWeight, Protocol):
    """A weight of several tensors; `format` is a scheme of `zllm.quant.weights`."""

    @property
    def aux(self) -> Mapping[str, StoredWeight]: ...

    @property
    def spec(self) -> Any: ...

    @property
    def first_row(self) -> int: ...


def floats_of(tensor: StoredWeight) -> NDArray[np.float32]:
    """A whole tensor decoded, in its own shape; a scalar is [1]."""
    columns = tensor.shape[-1] if tensor.shape else 1
    return formats.decode(tensor.format, tensor.data.read(), columns).reshape(tensor.shape or (1,))


def words_of(tensor: StoredWeight) -> NDArray[np.int32]:
    """A tensor of int32 words in its own shape, a view of its bytes."""
    if tensor.format != "i32":
        raise ValueError(f"packed codes are i32, got {tensor.format}")
    return np.frombuffer(tensor.data.read(), "<i4").reshape(tensor.shape)
