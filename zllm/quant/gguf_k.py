"""GGUF's 256-element super-blocks ("K-quants"): Q2_K … Q6_K and Q8_K.

Layouts: ggml, `ggml-common.h` (block_q2_K, …). Equal bit for bit to gguf-py's `quants.py`, and Q8_K
to ggml's `dequantize_row_q8_K`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from zllm.quant.bit_fields import fields, half_column

BLOCK_ELEMENTS = 256
Q2_K_BYTES = 84  # scales: 16 bytes, qs: 64 bytes, d: f16, dmin: f16
Q3_K_BYTES = 110  # hmask: 32 bytes, qs: 64 bytes, scales: 12 bytes, d: f16
Q4_K_BYTES = 144  # d: f16, dmin: f16, scales: 12 bytes, qs: 128 bytes
Q5_K_BYTES = 176  # d: f16, dmin: f16, scales: 12 bytes, qh: 32 bytes, qs: 128 bytes
Q6_K_BYTES = 210  # ql: 128 bytes, qh: 64 bytes, scales: 16 int8, d: f16
Q8_K_BYTES = 292  # d: f32, qs: 256 int8, sums of 16: 16 int16


def decode_q2_k(blocks: NDArray[np.uint8], out: NDArray[np.float32]) -> None:
    """[N, 84] bytes -> [N, 256]: (d scale) q - dmin min; a nibble each per 16 elements."""
    np.copyto(out, fields(blocks[:, 16:80], 32, 2))
    scales = half_column(blocks, 80) * (blocks[:, :16] & 15).astype(np.float32)
    mins = half_column(blocks, 82) * (blocks[:, :16] >> 4).astype(np.float32)
    _scale_groups(out, scales, mins)


def decode_q3_k(blocks: NDArray[np.uint8], out: NDArray[np.float32]) -> None:
    """[N, 110] bytes -> [N, 256]: (d scale) (q - 4), q's upper bit in hmask; scales per 16."""
    np.copyto(out, fields(blocks[:, 32:96], 32, 2) | (fields(blocks[:, :32], 32, 1) << 2))
    out -= np.float32(4)
    low = fields(blocks[:, 96:104], 8, 4)
    high = fields(blocks[:, 104:108], 4, 2)
    scales = (low | (high << 4)).astype(np.float32) - np.float32(32)
    _scale_groups(out, half_column(blocks, 108) * scales)


def decode_q4_k(blocks: NDArray[np.uint8], out: NDArray[np.float32]) -> None:
    """[N, 144] bytes -> [N, 256]: (d scale) q - dmin min, both per 32 elements."""
    np.copyto(out, fields(blocks[:, 16:], 32, 4))
    _scale_groups(out, *_scales_and_mins(blocks))


def decode_q5_k(blocks: NDArray[np.uint8], out: NDArray[np.float32]) -> None:
    """[N, 176] bytes -> [N, 256]: as Q4_K, q's upper bit in qh."""
    np.copyto(out, fields(blocks[:, 48:], 32, 4) | (fields(blocks[:, 16:48], 32, 1) << 4))
    _scale_groups(out, *_scales_and_mins(blocks))


def _scales_and_mins(
    blocks: NDArray[np.uint8],
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """d scale and dmin min [N, 8], six bits each, of blocks that begin d, dmin, 12 bytes.

    Bytes 0..3: scales 0..3, above them two bits of scales 4..7; bytes 4..7: the mins likewise;
    bytes 8..11: the low nibbles of scales 4..7 and, above, of mins 4..7.
    """
    scale, least, low = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = np.concatenate([scale & 63, (low & 15) | ((scale >> 2) & 48)], axis=1)
    mins = np.concatenate([least & 63, (low >> 4) | ((least >> 2) & 48)], axis=1)
    return (
        half_column(blocks, 0) * scales.astype(np.float32),
        half_column(blocks, 2) * mins.astype(np.float32),
    )


def _scale_groups(
    out: NDArray[np.float32],
    scales: NDArray[np.float32],
    mins: NDArray[np.float32] | None = None,
) -> None:
    """out [N, 256] times scales [N, groups], less mins."""
    groups = out.reshape(*scales.shape, -1)
    groups *= scales[:, :, None]
    if mins is not None:
        groups -= mins[:, :, None]


def decode_q6_k(blocks: NDArray[np.uint8], out: NDArray[np.float32]) -> None:
    """[N, 210] bytes -> [N, 256]: (d scale) (q - 32), one scale per 16 elements.

    Each half of 128 elements holds four runs of 32: low nibbles of ql[0:32], of ql[32:64], then
    their high nibbles; run r takes its two upper bits from bits 2r of qh.
    """
    low = blocks[:, :128].reshape(-1, 2, 2, 32)
    high = blocks[:, 128:192].reshape(-1, 2, 32)
    runs = out.reshape(-1, 2, 4, 32)
    for run in range(4):
        nibble = (low[:, :, run % 2] >> (4 * (run // 2))) & 15
        upper = ((high >> (2 * run)) & 3) << 4
        runs[:, :, run] = nibble | upper
    out -= np.float32(32)
    scales = half_column(blocks, 208) * blocks[:, 192:208].view(np.int8).astype(np.float32)
    _scale_groups(out, scales)


def decode_q8_k(blocks: NDArray[np.uint8], out: NDArray[np.float32]) -> None:
    """[N, 292] bytes -> [N, 256]: d q."""
    np.multiply(blocks[:, 4:260].view(np.int8), blocks[:, :4].view("<f4"), out=out)


# Name -> bytes of a block, decoder.
CODECS = {
    "q2_k": (Q2_K_BYTES, decode_q2_k),
    "q3_k": (Q3_K_BYTES, decode_q3_k),
    "q4_k": (Q4_K_BYTES, decode_q4_k),
    "q5_k": (Q5_K_BYTES, decode_q5_k),
    "q6_k": (Q6_K_BYTES, decode_q6_k),
    "q8_k": (Q8_K_BYTES, decode_q8_k),
}
