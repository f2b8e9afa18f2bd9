"""Seeded random weights in any stored format, of which only a few rows exist."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from zllm.errors import ZllmError
from zllm.quant import formats

SHIFT_ROWS = 16  # tensors of one tile begin at different rows of it
TILE_ELEMENTS = 1 << 20
MOST_ROWS = 4096

U8 = NDArray[np.uint8]
F32 = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Scales:
    """Where a block keeps its f16 scale, and a second that centres the values, if there is one.

    Any other bytes of the block may be drawn at random. Layouts: ggml, `ggml-common.h`.
    """

    at: int
    centre_at: int | None = None
    centre: float = 0.0  # the second scale as a multiple of the first


BLOCKS = {
    "q4_0": Scales(0),
    "q4_1": Scales(0, 2, -7.5),
    "q5_0": Scales(0),
    "q5_1": Scales(0, 2, -15.5),
    "q8_0": Scales(0),
    "q2_k": Scales(80, 82, 1.5),
    "q3_k": Scales(108),
    "q4_k": Scales(0, 2, 7.5),
    "q5_k": Scales(0, 2, 15.5),
    "q6_k": Scales(208),
    "iq4_nl": Scales(0),
    "iq4_xs": Scales(0),
}
FLOATS = ("f32", "f16", "bf16")
FORMATS = (*FLOATS, *BLOCKS)


def tile_rows(columns: int) -> int:
    """A power of two, so that rows shifted by SHIFT_ROWS fall on each other."""
    rows = 1 << max(TILE_ELEMENTS // columns, 64).bit_length() - 1
    return min(rows, MOST_ROWS)


def tile(format: str, columns: int, seed: int) -> bytes:
    """`tile_rows(columns)` rows, of deviation 1/sqrt(columns): products keep their input's size.

    ZllmError if this does not make the format, ValueError if rows are no whole blocks.
    """
    random = np.random.default_rng([seed, columns])
    rows, deviation = tile_rows(columns), columns**-0.5
    if format in FLOATS:
        values = random.standard_normal((rows, columns), np.float32) * np.float32(deviation)
        return _as_floats(format, values)
    if format not in BLOCKS:
        raise ZllmError(f"no random weights of format {format!r}: use one of {', '.join(FORMATS)}")
    row_bytes = formats.row_bytes(format, columns)
    blocks = random.integers(256, size=rows * row_bytes, dtype=np.uint8)
    blocks = blocks.reshape(-1, formats.lookup(format).block_bytes)
    _set_scales(blocks, BLOCKS[format], np.ones(len(blocks), np.float32))
    scale = deviation / formats.decode(format, blocks.reshape(-1), columns).std()
    # Of both signs: codes are seldom centred on zero.
    signs = random.choice((-1, 1), len(blocks))
    _set_scales(blocks, BLOCKS[format], scale * signs * random.uniform(0.8, 1.2, len(blocks)))
    return blocks.tobytes()


def _as_floats(format: str, values: F32) -> bytes:
    if format == "bf16":
        return (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()
    return values.astype(np.float16 if format == "f16" else np.float32).tobytes()


def _set_scales(blocks: U8, where: Scales, values: NDArray[np.floating]) -> None:
    for at, factor in ((where.at, 1.0), (where.centre_at, where.centre)):
        if at is not None:
            halves = (values * factor).astype(np.float16)
            blocks[:, at : at + 2] = halves.view(np.uint8).reshape(-1, 2)
