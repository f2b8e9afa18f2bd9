"""Plain floats as files store them, little endian, one element a block: f32, f16, bf16, f64."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def decode_f32(blocks: NDArray[np.uint8], out: NDArray[np.float32]) -> None:
    """[N, 4] bytes -> [N, 1]."""
    np.copyto(out, blocks.view("<f4"))


def decode_f16(blocks: NDArray[np.uint8], out: NDArray[np.float32]) -> None:
    """[N, 2] bytes of IEEE 754 binary16 -> [N, 1]."""
    np.copyto(out, blocks.view("<f2"))


def decode_bf16(blocks: NDArray[np.uint8], out: NDArray[np.float32]) -> None:
    """[N, 2] bytes -> [N, 1]: the upper half of a float32."""
    np.left_shift(blocks.view("<u2"), 16, out=out.view(np.uint32), dtype=np.uint32)


def decode_f64(blocks: NDArray[np.uint8], out: NDArray[np.float32]) -> None:
    """[N, 8] bytes of IEEE 754 binary64 -> [N, 1], rounded."""
    np.copyto(out, blocks.view("<f8"), casting="same_kind")
