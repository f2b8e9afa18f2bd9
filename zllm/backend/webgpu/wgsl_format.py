"""How each stored format lies on the device and which WGSL decodes it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from zllm.backend.webgpu.device import Dispatch, Kernel
from zllm.backend.webgpu.kernels import ceil_div, constants
from zllm.backend.webgpu.lowering import Bank, ResidentForm
from zllm.kernel.wgsl.source import compose

REPACK_GRID = 4096  # workgroups of 64; each strides
ROW_WORDS = 4  # rows are whole vec4s


@dataclass(frozen=True, slots=True)
class WgslFormat:
    """The file's block of `elements` is `scale_bytes`, then integers; on the device a row is the
    integers of all blocks, then the scales of all blocks.
    """

    elements: int
    block_bytes: int
    scale_bytes: int
    sources: tuple[str, ...]

    def blocks(self, columns: int) -> int:
        """Of a row; plain floats fill the last one with zeros."""
        return ceil_div(columns, self.elements)


FORMATS = {
    "f32": WgslFormat(8, 32, 0, ("block8", "decode_f32")),
    "f16": WgslFormat(8, 16, 0, ("block8", "decode_f16")),
    "bf16": WgslFormat(8, 16, 0, ("block8", "decode_bf16")),
    "q4_0": WgslFormat(32, 18, 2, ("block32", "spread", "decode_q4_0")),
    "q4_1": WgslFormat(32, 20, 4, ("block32", "spread", "decode_q4_1")),
    "q8_0": WgslFormat(32, 34, 2, ("block32", "spread", "decode_q8_0")),
    # Cut into blocks of 32: 16 bytes of nibbles, 8 of upper bits, and 4 of scales.
    "q6_k": WgslFormat(32, 28, 4, ("block32", "spread", "decode_q6_k")),
}


def resident(format: str, columns: int) -> ResidentForm:
    """How rows of a stored matrix lie on the device."""
    spec = FORMATS[format]
    blocks = spec.blocks(columns)
    row_words = ceil_div(ceil_div(blocks * spec.block_bytes, 4), ROW_WORDS) * ROW_WORDS
    if format == "q6_k":
        return ResidentForm(format, row_words, _repack_q6_k)
    if spec.scale_bytes == 0 and columns % spec.elements == 0:
        return ResidentForm(format, row_words)
    return ResidentForm(format, row_words, partial(_repack, spec))


def _repack(spec: WgslFormat, raw: Bank, bank: Bank) -> list[Dispatch]:
    values = {
        "ROWS": raw.rows,
        "RAW_ROW_WORDS": raw.row_words,
        "ROW_BYTES": raw.columns * spec.block_bytes // spec.elements,
        "BLOCKS": spec.blocks(raw.columns),
        "BLOCK_BYTES": spec.block_bytes,
        "SCALE_BYTES": spec.scale_bytes,
        "ROW_WORDS": bank.row_words,
    }
    return _repack_dispatch("repack", values, raw, bank)


def _repack_q6_k(raw: Bank, bank: Bank) -> list[Dispatch]:
    values = {
        "ROWS": raw.rows,
        "RAW_ROW_WORDS": raw.row_words,
        "BLOCKS": FORMATS["q6_k"].blocks(raw.columns),
    }
    return _repack_dispatch("repack_q6_k", values, raw, bank)


def _repack_dispatch(name: str, values: dict[str, int], raw: Bank, bank: Bank) -> list[Dispatch]:
    kernel = Kernel(name, compose(name), ("read", "write"), constants(values))
    return [Dispatch(kernel, (raw.buffer, bank.buffer), (REPACK_GRID, 1, 1))]
