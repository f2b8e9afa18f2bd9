"""GGUF's blocks of E2M1 floats: MXFP4 and NVFP4.

Layouts: ggml, `ggml-common.h` (block_mxfp4, block_nvfp4). A run keeps its first half in low nibbles
and its second half in high ones, unlike safetensors. Equal bit for bit to gguf-py's `quants.py`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from zllm.quant.bit_fields import fields
from zllm.quant.float4 import E2M1
from zllm.quant.float8 import bit_values

MXFP4_BYTES = 17  # e: E8M0, qs: 16 bytes; 32 elements
NVFP4_BYTES = 36  # d: 4 bytes of unsigned E4M3, qs: 32 bytes; 64 elements

# ggml doubles the values and halves the scales, so e = 255 is 2^128 and no NaN; code 8 is +0.
DOUBLED = 2 * E2M1 + np.float32(0)
HALF_E8M0 = np.ldexp(np.float32(1), np.arange(256) - 128)


def _half_ue4m3() -> NDArray[np.float32]:
    """Half the value of each scale byte; the sign bit is not looked at, 0x7F is 0."""
    values = np.tile(bit_values(exponent_bits=4, mantissa_bits=3, bias=7)[:128], 2)
    values[0x7F] = 0
    return values * np.float32(0.5)


HALF_UE4M3 = _half_ue4m3()


def decode_mxfp4(blocks: NDArray[np.uint8], out: NDArray[np.float32]) -> None:
    """[N, 17] bytes -> [N, 32]: 2^(e - 127) e2m1(q)."""
    np.take(DOUBLED, fields(blocks[:, 1:], 16, 4), out=out, mode="clip")
    out *= HALF_E8M0[blocks[:, :1]]


def decode_nvfp4(blocks: NDArray[np.uint8], out: NDArray[np.float32]) -> None:
    """[N, 36] bytes -> [N, 64]: ue4m3(d) e2m1(q), one scale per 16 elements."""
    np.take(DOUBLED, fields(blocks[:, 4:], 8, 4), out=out, mode="clip")
    groups = out.reshape(-1, 4, 16)
    groups *= HALF_UE4M3[blocks[:, :4]][:, :, None]


# Name -> elements and bytes of a block, decoder.
CODECS = {
    "mxfp4": (32, MXFP4_BYTES, decode_mxfp4),
    "nvfp4": (64, NVFP4_BYTES, decode_nvfp4),
}
