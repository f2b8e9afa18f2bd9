"""GGUF's codebook formats: IQ1_S … IQ3_S look groups up in a grid, IQ4 single elements in a list.

Layouts: ggml, `ggml-common.h` (block_iq2_xxs, …). Equal bit for bit to gguf-py's `quants.py`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from zllm.quant import gguf_iq_grids as grids
from zllm.quant.bit_fields import fields, half_column

BLOCK_ELEMENTS = 256
IQ1_S_BYTES = 50  # d: f16, qs: 32 bytes, qh: 8 u16
IQ1_M_BYTES = 56  # qs: 32 bytes, qh: 16 bytes, scales: 4 u16, d in their upper nibbles
IQ2_XXS_BYTES = 66  # d: f16, 8 x (4 bytes of indices, u32 of signs and scale)
IQ2_XS_BYTES = 74  # d: f16, qs: 32 u16, scales: 8 bytes
IQ2_S_BYTES = 82  # d: f16, qs: 32 bytes, signs: 32 bytes, qh: 8 bytes, scales: 8 bytes
IQ3_XXS_BYTES = 98  # d: f16, qs: 64 bytes, 8 u32 of signs and scale
IQ3_S_BYTES = 110  # d: f16, qs: 64 bytes, qh: 8 bytes, signs: 32 bytes, scales: 4 bytes
IQ4_NL_BYTES = 18  # d: f16, qs: 16 bytes; 32 elements
IQ4_XS_BYTES = 136  # d: f16, scales_h: u16, scales_l: 4 bytes, qs: 128 bytes

IQ1_DELTA = np.float32(0.125)  # ggml-common.h: IQ1S_DELTA
# ggml-common.h: kvalues_iq4nl
IQ4_VALUES = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32
)
# [256, 8]: -1 where a bit is set, lowest first.
SIGNS = np.where((np.arange(256)[:, None] >> np.arange(8)) & 1, -1, 1).astype(np.float32)
# [128, 8]: of seven bits; the eighth sign makes their number even (ggml-common.h: ksigns_iq2xs).
EVEN_SIGNS = SIGNS[[index | (index.bit_count() & 1) << 7 for index in range(128)]]

U8 = NDArray[np.uint8]
F32 = NDArray[np.float32]


def decode_iq2_xxs(blocks: U8, out: F32) -> None:
    """[N, 66] bytes -> [N, 256]: d (1/2 + scale)/4 · grid · sign; a scale per 32 elements."""
    indices = blocks[:, 2:].reshape(-1, 8, 8)[:, :, :4]
    words = blocks[:, 2:].view("<u4")[:, 1::2]
    scales = half_column(blocks, 0) * (np.float32(0.5) + (words >> 28).astype(np.float32))
    _fill(out, grids.IQ2_XXS[indices], _even_signs(words), scales * np.float32(0.25))


def decode_iq2_xs(blocks: U8, out: F32) -> None:
    """[N, 74] bytes -> [N, 256]: as IQ2_XXS with nine bits of index and a scale per 16 elements."""
    words = blocks[:, 2:66].view("<u2")
    scales = _quarter_scales(half_column(blocks, 0), blocks[:, 66:])
    _fill(out, grids.IQ2_XS[words & 511], EVEN_SIGNS[words >> 9], scales)


def decode_iq2_s(blocks: U8, out: F32) -> None:
    """[N, 82] bytes -> [N, 256]: as IQ2_XS with ten bits of index and every sign by itself."""
    indices = blocks[:, 2:34] | (fields(blocks[:, 66:74], 1, 2).astype(np.uint16) << 8)
    scales = _quarter_scales(half_column(blocks, 0), blocks[:, 74:])
    _fill(out, grids.IQ2_S[indices], SIGNS[blocks[:, 34:66]], scales)


def decode_iq3_xxs(blocks: U8, out: F32) -> None:
    """[N, 98] bytes -> [N, 256]: d (1/2 + scale)/2 · grid · sign, four elements to an index."""
    words = blocks[:, 66:].view("<u4")
    scales = half_column(blocks, 0) * (np.float32(0.5) + (words >> 28).astype(np.float32))
    _fill(out, grids.IQ3_XXS[blocks[:, 2:66]], _even_signs(words), scales * np.float32(0.5))


def decode_iq3_s(blocks: U8, out: F32) -> None:
    """[N, 110] bytes -> [N, 256]: d (1 + 2 scale) · grid · sign, a scale per 32 elements."""
    indices = blocks[:, 2:66] | (fields(blocks[:, 66:74], 1, 1).astype(np.uint16) << 8)
    scales = half_column(blocks, 0) * (1 + 2 * fields(blocks[:, 106:], 1, 4)).astype(np.float32)
    _fill(out, grids.IQ3_S[indices], SIGNS[blocks[:, 74:106]], scales)


def decode_iq1_s(blocks: U8, out: F32) -> None:
    """[N, 50] bytes -> [N, 256]: d (2 scale + 1) · (grid ± 1/8), both per 32 elements."""
    words = blocks[:, 34:].view("<u2")  # [N, 8]: four times three bits of index, scale, sign
    high = (words[:, :, None] >> np.arange(0, 12, 3, dtype=np.uint16)) & 7
    indices = blocks[:, 2:34] | (high << 8).reshape(-1, 32)
    values = out.reshape(-1, 8, 32)
    values[:] = grids.IQ1_S[indices].reshape(-1, 8, 32)
    values += np.where(words >> 15, -IQ1_DELTA, IQ1_DELTA)[:, :, None]
    scales = half_column(blocks, 0) * (2 * ((words >> 12) & 7) + 1).astype(np.float32)
    values *= scales[:, :, None]


def decode_iq1_m(blocks: U8, out: F32) -> None:
    """[N, 56] bytes -> [N, 256]: as IQ1_S, ± per 8 elements and a scale per 16."""
    words = blocks[:, 48:].view("<u2")  # [N, 4]: four scales of three bits, a nibble of d
    nibbles = (words & 0xF000) >> np.array([12, 8, 4, 0], np.uint16)
    d = np.bitwise_or.reduce(nibbles, axis=1).view("<f2").astype(np.float32)
    scales = (words[:, :, None] >> np.arange(0, 12, 3, dtype=np.uint16)) & 7
    high = fields(blocks[:, 32:48], 1, 4)  # [N, 32]: three bits of index, sign
    indices = blocks[:, :32] | ((high & 7).astype(np.uint16) << 8)
    groups = out.reshape(-1, 32, 8)
    groups[:] = grids.IQ1_S[indices]
    groups += np.where(high & 8, -IQ1_DELTA, IQ1_DELTA)[:, :, None]
    halves = out.reshape(-1, 16, 16)
    halves *= (d[:, None] * (2 * scales + 1).reshape(-1, 16).astype(np.float32))[:, :, None]


def decode_iq4_nl(blocks: U8, out: F32) -> None:
    """[N, 18] bytes -> [N, 32]: d · values[q]."""
    np.take(IQ4_VALUES, fields(blocks[:, 2:], 16, 4), out=out, mode="clip")
    out *= half_column(blocks, 0)


def decode_iq4_xs(blocks: U8, out: F32) -> None:
    """[N, 136] bytes -> [N, 256]: d (scale - 32) · values[q]; six bits of scale per 32."""
    np.take(IQ4_VALUES, fields(blocks[:, 8:], 16, 4), out=out, mode="clip")
    high = (blocks[:, 2:4].view("<u2") >> np.arange(0, 16, 2, dtype=np.uint16)) & 3
    scales = (fields(blocks[:, 4:8], 1, 4) | (high << 4)).astype(np.float32) - np.float32(32)
    groups = out.reshape(-1, 8, 32)
    groups *= (half_column(blocks, 0) * scales)[:, :, None]


def _even_signs(words: NDArray[np.uint32]) -> F32:
    """[N, 8] words with four times seven bits -> [N, 8, 4, 8] signs."""
    signs: F32 = EVEN_SIGNS[(words[:, :, None] >> np.arange(0, 28, 7, dtype=np.uint32)) & 127]
    return signs


def _quarter_scales(d: F32, packed: U8) -> F32:
    """d (1/2 + scale)/4 [N, 16] from bytes of two scales."""
    scales = np.float32(0.5) + fields(packed, 1, 4).astype(np.float32)
    return d * scales * np.float32(0.25)


def _fill(out: F32, values: F32, signs: F32, scales: F32) -> None:
    """out = scale · value · sign, a scale for each of the equal runs of a block."""
    np.multiply(values.reshape(out.shape), signs.reshape(out.shape), out=out)
    runs = out.reshape(*scales.shape, -1)
    runs *= scales[:, :, None]


# Name -> elements and bytes of a block, decoder.
CODECS = {
    "iq1_s": (256, IQ1_S_BYTES, decode_iq1_s),
    "iq1_m": (256, IQ1_M_BYTES, decode_iq1_m),
    "iq2_xxs": (256, IQ2_XXS_BYTES, decode_iq2_xxs),
    "iq2_xs": (256, IQ2_XS_BYTES, decode_iq2_xs),
    "iq2_s": (256, IQ2_S_BYTES, decode_iq2_s),
    "iq3_xxs": (256, IQ3_XXS_BYTES, decode_iq3_xxs),
    "iq3_s": (256, IQ3_S_BYTES, decode_iq3_s),
    "iq4_nl": (32, IQ4_NL_BYTES, decode_iq4_nl),
    "iq4_xs": (256, IQ4_XS_BYTES, decode_iq4_xs),
}
