"""GGUF's 32-element blocks: Q4_0, Q4_1, Q5_0, Q5_1 and Q8_0.

Layouts: ggml, `ggml-common.h` (block_q4_0, block_q5_1, …). Nibble formats keep elements 0..15 in
the low halves of their 16 bytes and 16..31 in the high halves. Products and sums are rounded to
float32 one by one, as in gguf-py's `quants.py`, so results are equal bit for bit.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from zllm.quant.bit_fields import fields, half_column

BLOCK_ELEMENTS = 32
Q4_0_BYTES = 18  # d: f16, qs: 16 bytes
Q4_1_BYTES = 20  # d: f16, m: f16, qs: 16 bytes
Q5_0_BYTES = 22  # d: f16, qh: 32 bits, qs: 16 bytes
Q5_1_BYTES = 24  # d: f16, m: f16, qh: 32 bits, qs: 16 bytes
Q8_0_BYTES = 34  # d: f16, qs: 32 int8


def unpack_nibbles(packed: NDArray[np.uint8], out: NDArray[np.float32]) -> None:
    """[N, 16] bytes -> [N, 32] values 0..15."""
    out[:, :16] = packed & 15
    out[:, 16:] = packed >> 4


def decode_q4_0(blocks: NDArray[np.uint8], out: NDArray[np.float32]) -> None:
    """[N, 18] bytes -> [N, 32]: d (q - 8)."""
    unpack_nibbles(blocks[:, 2:], out)
    out -= np.float32(8)
    out *= half_column(blocks, 0)


def decode_q4_1(blocks: NDArray[np.uint8], out: NDArray[np.float32]) -> None:
    """[N, 20] bytes -> [N, 32]: d q + m."""
    unpack_nibbles(blocks[:, 4:], out)
    out *= half_column(blocks, 0)
    out += half_column(blocks, 2)


def decode_q5_0(blocks: NDArray[np.uint8], out: NDArray[np.float32]) -> None:
    """[N, 22] bytes -> [N, 32]: d (q - 16)."""
    np.copyto(out, _five_bits(blocks[:, 2:6], blocks[:, 6:]))
    out -= np.float32(16)
    out *= half_column(blocks, 0)


def decode_q5_1(blocks: NDArray[np.uint8], out: NDArray[np.float32]) -> None:
    """[N, 24] bytes -> [N, 32]: d q + m."""
    np.copyto(out, _five_bits(blocks[:, 4:8], blocks[:, 8:]))
    out *= half_column(blocks, 0)
    out += half_column(blocks, 2)


def _five_bits(high: NDArray[np.uint8], low: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """32 upper bits in order and 16 bytes of nibbles -> [N, 32] values 0..31."""
    return fields(low, 16, 4) | (fields(high, 1, 1) << np.uint8(4))


def decode_q8_0(blocks: NDArray[np.uint8], out: NDArray[np.float32]) -> None:
    """[N, 34] bytes -> [N, 32]: d q."""
    np.multiply(blocks[:, 2:].view(np.int8), half_column(blocks, 0), out=out)


# Name -> bytes of a block, decoder.
CODECS = {
    "q4_0": (Q4_0_BYTES, decode_q4_0),
    "q4_1": (Q4_1_BYTES, decode_q4_1),
    "q5_0": (Q5_0_BYTES, decode_q5_0),
    "q5_1": (Q5_1_BYTES, decode_q5_1),
    "q8_0": (Q8_0_BYTES, decode_q8_0),
}
