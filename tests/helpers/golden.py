"""Reference folders: their tensors as f32 by the file's names, and the recorded inner values."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from tests.helpers.tiny_model import GOLDEN
from zllm.quant import formats
from zllm.weight import shards
from zllm.weight.linear_weight import format_of

F32 = NDArray[np.float32]


@cache
def tensors(folder: str) -> dict[str, F32]:
    """Every tensor of a golden folder, decoded."""
    found: dict[str, F32] = {}
    for name, weight in shards.open_folder(GOLDEN / folder).tensors.items():
        out = np.empty(weight.shape, np.float32).reshape(-1, weight.shape[-1])
        formats.decode(format_of(weight), weight.data.read(), weight.shape[-1], out)
        found[name] = out.reshape(weight.shape)
    return found


@cache
def recorded(folder: str) -> dict[str, NDArray[np.float32]]:
    with np.load(GOLDEN / folder / "golden.npz") as arrays:
        return {name: arrays[name] for name in arrays.files}
