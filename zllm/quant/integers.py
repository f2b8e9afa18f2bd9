"""Plain integers, little endian, one element a block, as the numbers they are.

f32 holds every integer up to 2^24; larger ones are rounded.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

_DTYPES = {
    "bool": "<u1",
    "i8": "<i1",
    "u8": "<u1",
    "i16": "<i2",
    "u16": "<u2",
    "i32": "<i4",
    "u32": "<u4",
    "i64": "<i8",
    "u64": "<u8",
}


def _decoder(dtype: str) -> Callable[[NDArray[np.uint8], NDArray[np.float32]], None]:
    def decode(blocks: NDArray[np.uint8], out: NDArray[np.float32]) -> None:
        np.copyto(out, blocks.view(dtype), casting="unsafe")

    return decode


# Name -> bytes of an element, decoder [N, width] -> [N, 1].
CODECS = {name: (np.dtype(dtype).itemsize, _decoder(dtype)) for name, dtype in _DTYPES.items()}
