"""The tensors that belong to one quantised weight, found by their names."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from zllm.errors import LoadError
from zllm.quant.formats import row_bytes
from zllm.weight.linear_weight import OneTensor


class Siblings:
    """Looks tensors up and remembers which were used."""

    def __init__(self, tensors: Mapping[str, OneTensor]) -> None:
        self.tensors = tensors
        self.used: set[str] = set()

    def optional(self, name: str) -> OneTensor | None:
        tensor = self.tensors.get(name)
        if tensor is not None:
            self.used.add(name)
        return tensor

    def needed(self, name: str, weight: str) -> OneTensor:
        tensor = self.optional(name)
        if tensor is None:
            raise LoadError(f"tensor {weight!r}: its {name!r} is missing")
        return tensor

    def scale_of(self, name: str) -> str | None:
        """The name of the scale of codes: DeepSeek's, everyone's, DeepSeek-V4's spelling."""
        spellings = [f"{name}_scale_inv", f"{name}_scale"]
        if name.endswith(".weight"):
            spellings.append(f"{name.removesuffix('weight')}scale")
        return next((spelling for spelling in spellings if spelling in self.tensors), None)

    def integers(self, name: str, weight: str) -> list[int]:
        """The values of a small tensor of i32 or i64."""
        tensor = self.needed(name, weight)
        if tensor.format not in ("i32", "i64") or tensor.size_bytes > 64:
            raise LoadError(
                f"tensor {name!r}: {tensor.format} {list(tensor.shape)}, expected a shape"
            )
        values: list[int] = np.frombuffer(
            tensor.data.read(), f"<{tensor.format[0]}{row_bytes(tensor.format, 1)}"
        ).tolist()
        return values


def check_shape(name: str, tensor: OneTensor, shape: tuple[int, ...]) -> OneTensor:
    """The tensor itself. LoadError unless it has this shape."""
    if tensor.shape != shape:
        raise LoadError(f"tensor {name!r}: shape {list(tensor.shape)}, expected {list(shape)}")
    return tensor
