"""Eight-bit floats, one element a byte: E4M3, E5M2 and the scale bytes E8M0.

"FP8 Formats for Deep Learning" [2209.05433]; E8M0: OCP Microscaling Formats v1.0, section 5.4.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

E4M3_NAN = 0x7F  # and with the sign bit; there are no infinities


def bit_values(exponent_bits: int, mantissa_bits: int, bias: int) -> NDArray[np.float32]:
    """[256] values of sign, exponent and mantissa, before the codes that mean something else."""
    codes = np.arange(256)
    exponent = (codes >> mantissa_bits) & ((1 << exponent_bits) - 1)
    mantissa = codes & ((1 << mantissa_bits) - 1)
    normal = exponent > 0
    significand = (mantissa + (normal << mantissa_bits)).astype(np.float32)
    magnitude = np.ldexp(significand, np.maximum(exponent, 1) - bias - mantissa_bits)
    values: NDArray[np.float32] = np.where(codes < 128, magnitude, -magnitude).astype(np.float32)
    return values


def _e4m3() -> NDArray[np.float32]:
    values = bit_values(exponent_bits=4, mantissa_bits=3, bias=7)
    values[[E4M3_NAN, E4M3_NAN | 0x80]] = np.nan
    return values


def _e5m2() -> NDArray[np.float32]:
    values = bit_values(exponent_bits=5, mantissa_bits=2, bias=15)
    for sign in (0, 0x80):
        values[0x7C | sign] = np.float32(-np.inf if sign else np.inf)
        values[0x7D | sign : (0x7F | sign) + 1] = np.nan
    return values


def _e8m0() -> NDArray[np.float32]:
    values: NDArray[np.float32] = np.ldexp(
        np.float32(1), np.minimum(np.arange(256), 254) - 127
    )  # 0: 2^-127
    values[255] = np.nan
    return values


E4M3, E5M2, E8M0 = _e4m3(), _e5m2(), _e8m0()


def decode_e4m3(blocks: NDArray[np.uint8], out: NDArray[np.float32]) -> None:
    """[N, 1] codes -> [N, 1]."""
    np.take(E4M3, blocks, out=out, mode="clip")


def decode_e5m2(blocks: NDArray[np.uint8], out: NDArray[np.float32]) -> None:
    """[N, 1] codes -> [N, 1]."""
    np.take(E5M2, blocks, out=out, mode="clip")


def decode_e8m0(blocks: NDArray[np.uint8], out: NDArray[np.float32]) -> None:
    """[N, 1] exponents e -> [N, 1]: 2^(e - 127)."""
    np.take(E8M0, blocks, out=out, mode="clip")
