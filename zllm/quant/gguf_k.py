"""GGUF's 256-element super-blocks ("K-quants"): Q6_K.

Layout: ggml, `ggml-common.h` (block_q6_K). Equal bit for bit to gguf-py's `quants.py`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

BLOCK_ELEMENTS = 256
Q6_K_BYTES = 210  # ql: 128 bytes, qh: 64 bytes, scales: 16 int8, d: f16


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
    d = blocks[:, 208:210].view("<f2").astype(np.float32)
    scales = d * blocks[:, 192:208].view(np.int8).astype(np.float32)  # [N, 16]
    groups = out.reshape(-1, 16, 16)
    groups *= scales[:, :, None]
