"""Zeroed memory that costs nothing until it is touched."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray


def lazy_zeros(shape: tuple[int, ...]) -> NDArray[np.float32]:
    """f32 zeros. NumPy asks for huge pages, and one touched slot would then cost 2 MB per array."""
    try:
        import mmap  # absent in some WebAssembly builds

        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    except (ImportError, AttributeError):
        return np.zeros(shape, np.float32)
    size_bytes = math.prod(shape) * 4
    return np.frombuffer(mmap.mmap(-1, size_bytes, flags=flags), np.float32).reshape(shape)
