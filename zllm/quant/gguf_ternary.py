"""GGUF's formats of one or two bits: TQ1_0, TQ2_0, Q1_0 and Q2_0.

Layouts: ggml, `ggml-common.h` (block_tq1_0, …). Equal bit for bit to gguf-py's `quants.py`, and
Q1_0 and Q2_0 to ggml's `dequantize_row_q1_0` and `dequantize_row_q2_0`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from zllm.quant.bit_fields import fields, half_column

TQ1_0_BYTES = 54  # qs: 48 bytes of five digits, qh: 4 bytes of four, d: f16; 256 elements
TQ2_0_BYTES = 66  # qs: 64 bytes, d: f16; 256 elements
Q1_0_BYTES = 18  # d: f16, qs: 16 bytes; 128 elements
Q2_0_BYTES = 18  # d: f16, qs: 16 bytes; 64 elements

POWERS_OF_3 = np.array([1, 3, 9, 27, 81], np.uint8)


def decode_tq1_0(blocks: NDArray[np.uint8], out: NDArray[np.float32]) -> None:
    """[N, 54] bytes -> [N, 256]: d (digit - 1), digits base 3 of a fraction of 256, highest first.

    Of 32 bytes the first digits, then the second ones, …; likewise of 16 bytes, and of the last 4.
    """
    at = 0
    for first, count, digits in ((0, 32, 5), (32, 16, 5), (48, 4, 4)):
        packed = blocks[:, None, first : first + count]
        # Products keep their lowest eight bits: what is left of the fraction after the digits.
        shifted = (packed * POWERS_OF_3[:digits, None]).astype(np.uint16)
        out[:, at : at + count * digits] = (shifted * 3 >> 8).reshape(len(blocks), -1)
        at += count * digits
    out -= np.float32(1)
    out *= half_column(blocks, 52)


def decode_tq2_0(blocks: NDArray[np.uint8], out: NDArray[np.float32]) -> None:
    """[N, 66] bytes -> [N, 256]: d (q - 1)."""
    np.copyto(out, fields(blocks[:, :64], 32, 2))
    out -= np.float32(1)
    out *= half_column(blocks, 64)


def decode_q1_0(blocks: NDArray[np.uint8], out: NDArray[np.float32]) -> None:
    """[N, 18] bytes -> [N, 128]: d where the bit is set, else -d."""
    d = half_column(blocks, 0)
    np.copyto(out, np.where(fields(blocks[:, 2:], 1, 1), d, -d))


def decode_q2_0(blocks: NDArray[np.uint8], out: NDArray[np.float32]) -> None:
    """[N, 18] bytes -> [N, 64]: d (q - 1)."""
    np.copyto(out, fields(blocks[:, 2:], 1, 2))
    out -= np.float32(1)
    out *= half_column(blocks, 0)


# Name -> elements and bytes of a block, decoder.
CODECS = {
    "tq1_0": (256, TQ1_0_BYTES, decode_tq1_0),
    "tq2_0": (256, TQ2_0_BYTES, decode_tq2_0),
    "q1_0": (128, Q1_0_BYTES, decode_q1_0),
    "q2_0": (64, Q2_0_BYTES, decode_q2_0),
}
