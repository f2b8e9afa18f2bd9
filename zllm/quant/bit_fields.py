"""Small unsigned integers that share bytes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def fields(packed: NDArray[np.uint8], run: int, bits: int) -> NDArray[np.uint8]:
    """[N, M] bytes -> [N, M·8/bits]: of each run of bytes the lowest fields, then the next ones."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    spread = packed.reshape(len(packed), packed.shape[1] // run, 1, run) >> shifts
    spread &= np.uint8((1 << bits) - 1)
    return spread.reshape(len(packed), packed.shape[1] * 8 // bits)


def half_column(blocks: NDArray[np.uint8], offset: int) -> NDArray[np.float32]:
    """The float16 at byte `offset` of each block as float32 [N, 1]."""
    return blocks[:, offset : offset + 2].view("<f2").astype(np.float32)
