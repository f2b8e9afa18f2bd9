"""Random rows of every codec's format whose values are near 1: for tests and measurements."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from zllm.quant import formats
from zllm.quant.float8 import E4M3, E5M2

U8 = NDArray[np.uint8]

# Where a block's f16 scales stand, and a size that keeps values near 1.
HALVES: dict[str, list[tuple[int, float]]] = {
    "q4_0": [(0, 0.1)],
    "q4_1": [(0, 0.1), (2, 0.1)],
    "q5_0": [(0, 0.05)],
    "q5_1": [(0, 0.05), (2, 0.1)],
    "q8_0": [(0, 0.01)],
    "q2_k": [(80, 0.05), (82, 0.05)],
    "q3_k": [(108, 0.01)],
    "q4_k": [(0, 0.002), (2, 0.01)],
    "q5_k": [(0, 0.001), (2, 0.01)],
    "q6_k": [(208, 0.0005)],
    "iq1_s": [(0, 0.1)],
    "iq2_xxs": [(0, 0.02)],
    "iq2_xs": [(0, 0.02)],
    "iq2_s": [(0, 0.02)],
    "iq3_xxs": [(0, 0.02)],
    "iq3_s": [(0, 0.01)],
    "iq4_nl": [(0, 0.01)],
    "iq4_xs": [(0, 0.0005)],
    "tq1_0": [(52, 1)],
    "tq2_0": [(64, 1)],
    "q1_0": [(0, 1)],
    "q2_0": [(0, 1)],
}
# Leading bytes that are small floats, and the code of about 1.
SCALE_BYTES = {"mxfp4": 1, "nvfp4": 4}
NEAR_ONE = {"mxfp4": 125, "nvfp4": 48}
# f32 scales that stand first.
SINGLES = {"q8_k": 0.01}
FLOAT8 = {"f8_e4m3": E4M3, "f8_e5m2": E5M2}


def random_blocks(rng: np.random.Generator, format: str, rows: int, columns: int) -> U8:
    """Encoded rows [rows, bytes] of any format of `formats` that holds weights."""
    if format in ("f32", "f16", "bf16", "f64"):
        return _floats(format, rng.standard_normal((rows, columns)))
    if format in FLOAT8:
        return near_one(rng, FLOAT8[format], (rows, columns))
    spec = formats.lookup(format)
    blocks = columns // spec.block_elements
    data = rng.integers(0, 256, (rows, blocks, spec.block_bytes), dtype=np.uint8)
    for at, size in HALVES.get(format, ()):
        data[:, :, at : at + 2] = _scales(rng, (rows, blocks), size, "<f2")
    if format in SINGLES:
        data[:, :, :4] = _scales(rng, (rows, blocks), SINGLES[format], "<f4")
    if format == "iq1_m":
        _scale_iq1_m(rng, data)
    for at in range(SCALE_BYTES.get(format, 0)):
        data[:, :, at] = NEAR_ONE[format] + data[:, :, at] % 3
    return data.reshape(rows, -1)


def near_one(rng: np.random.Generator, values: NDArray[np.float32], shape: tuple[int, ...]) -> U8:
    """Codes, all of them equally often, of those `values` [256] that are neither tiny nor huge."""
    size = np.abs(values)
    usable = np.flatnonzero((size == 0) | ((size > 2**-6) & (size < 8))).astype(np.uint8)
    return rng.choice(usable, shape)


def _floats(format: str, values: NDArray[np.float64]) -> U8:
    if format == "bf16":
        upper = values.astype("<f4").view("<u2")[:, 1::2]
        return np.ascontiguousarray(upper).view(np.uint8)
    return values.astype({"f16": "<f2", "f32": "<f4", "f64": "<f8"}[format]).view(np.uint8)


def _scales(rng: np.random.Generator, shape: tuple[int, int], size: float, dtype: str) -> U8:
    return (rng.standard_normal((*shape, 1)) * size).astype(dtype).view(np.uint8)


def _scale_iq1_m(rng: np.random.Generator, data: U8) -> None:
    """The scale's nibbles, the lowest first, are the upper ones of the last four words."""
    d = (rng.standard_normal((*data.shape[:2], 1)) * 0.1).astype("<f2").view("<u2")
    words = np.ascontiguousarray(data[:, :, 48:]).view("<u2") & 0x0FFF
    words |= (d >> np.array([0, 4, 8, 12], np.uint16) & 15) << 12
    data[:, :, 48:] = words.view(np.uint8)
