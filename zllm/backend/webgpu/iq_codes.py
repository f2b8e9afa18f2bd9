"""IQ1 to IQ3 of GGUF (zllm.quant.gguf_iq) as small integers and a scale per 16 elements.

A block's value is scale · grid point · sign with scale = d · k for a small k. With d = 1 and k as
small as it gets, the codec itself yields the integers; with d = 1 alone, the k of each group. All
these numbers have few bits, so nothing is rounded but what the codec rounds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from zllm.quant import formats

F32 = NDArray[np.float32]
U8 = NDArray[np.uint8]

ELEMENTS, GROUP = 256, 16


@dataclass(frozen=True, slots=True)
class IqLayout:
    """Where a block keeps its scales."""

    unit: float  # the value of the integer 1 at d = 1 and the smallest k
    scale_bytes: slice
    kept_bits: tuple[int, ...]  # of these bytes, in turn; the others are the scale


LAYOUTS = {
    "iq1_s": IqLayout(0.125, slice(35, 50, 2), (0x8F,)),
    "iq1_m": IqLayout(0.125, slice(48, 56), (0x00, 0xF0)),
    "iq2_xxs": IqLayout(0.125, slice(9, 66, 8), (0x0F,)),
    "iq2_xs": IqLayout(0.125, slice(66, 74), (0x00,)),
    "iq2_s": IqLayout(0.125, slice(74, 82), (0x00,)),
    "iq3_xxs": IqLayout(0.25, slice(69, 98, 4), (0x0F,)),
    "iq3_s": IqLayout(1.0, slice(106, 110), (0x00,)),
}


def codes_and_scales(format: str, raw: U8, columns: int) -> tuple[U8, F32]:
    """Rows of blocks [count, bytes] -> integers + 128 [count, columns], f32 [count, columns/16]."""
    layout = LAYOUTS[format]
    count = len(raw)
    blocks = raw.reshape(-1, formats.lookup(format).block_bytes).copy()
    take = _take_d_iq1_m if format == "iq1_m" else _take_d
    d = take(blocks)
    scaled = _decoded(format, blocks)
    at = layout.scale_bytes
    blocks[:, at] &= np.resize(np.array(layout.kept_bits, np.uint8), blocks[:, at].shape[1])
    integers = _decoded(format, blocks) / np.float32(layout.unit)
    # No integer is zero: grids of IQ2 and IQ3 hold none, and IQ1 adds an eighth.
    scales = d[:, None] * (scaled[:, ::GROUP] / integers[:, ::GROUP])
    codes = (integers + np.float32(128)).astype(np.uint8)
    return codes.reshape(count, columns), scales.reshape(count, -1)


def _decoded(format: str, blocks: U8) -> F32:
    return formats.decode(format, blocks.reshape(-1), ELEMENTS)


def _take_d(blocks: U8) -> F32:
    """d of each block, which becomes 1."""
    d: F32 = blocks[:, :2].copy().view("<f2")[:, 0].astype(np.float32)
    blocks[:, :2] = np.array([1], "<f2").view(np.uint8)
    return d


def _take_d_iq1_m(blocks: U8) -> F32:
    """As `_take_d`, of nibbles: the lowest in the first word's upper one."""
    words = blocks[:, 48:56].copy().view("<u2")
    places = np.array([0, 4, 8, 12], np.uint16)
    d = np.bitwise_or.reduce((words >> 12) << places, axis=1).astype("<u2")
    one = (np.array([0x3C00], np.uint16) >> places & 15) << 12
    blocks[:, 48:56] = ((words & 0x0FFF) | one).astype("<u2").view(np.uint8)
    values: F32 = d.view("<f2").astype(np.float32)
    return values
