"""How each stored format lies on the device and which WGSL decodes it."""

from __future__ import annotations

from dataclasses import dataclass

from zllm.backend.webgpu.device import Dispatch, Kernel
from zllm.backend.webgpu.lowering import Bank, ResidentForm
from zllm.kernel.wgsl.source import compose

REPACK_GRID = 4096  # workgroups of 64; each strides


@dataclass(frozen=True, slots=True)
class WgslFormat:
    """`elements` of a row make a block of `block_words`; the file has `file_bytes` a block.

    The first `head_bytes` of a file's block get a word of their own, so that the rest is aligned.
    """

    elements: int
    block_words: int
    file_bytes: int
    head_bytes: int
    sources: tuple[str, ...]


FORMATS = {
    "f32": WgslFormat(8, 8, 32, 0, ("block8", "decode_f32")),
    "f16": WgslFormat(8, 4, 16, 0, ("block8", "decode_f16")),
    "bf16": WgslFormat(8, 4, 16, 0, ("block8", "decode_bf16")),
    "q4_0": WgslFormat(32, 5, 18, 2, ("block32", "spread", "decode_q4_0")),
    "q4_1": WgslFormat(32, 5, 20, 0, ("block32", "spread", "decode_q4_1")),
    "q8_0": WgslFormat(32, 9, 34, 2, ("block32", "decode_q8_0")),
    "q6_k": WgslFormat(32, 7, 0, 0, ("block32", "spread", "decode_q6_k")),
}


def blocks_of(format: str, columns: int) -> int:
    return -(-columns // FORMATS[format].elements)


def resident(format: str, columns: int) -> ResidentForm:
    """Quantised rows are whole blocks; plain floats are padded to whole blocks with zeros."""
    spec = FORMATS[format]
    row_words = blocks_of(format, columns) * spec.block_words
    if format == "q6_k":
        return ResidentForm(format, row_words, _repack_q6_k)
    if spec.file_bytes == 4 * spec.block_words and columns % spec.elements == 0:
        return ResidentForm(format, row_words)
    return ResidentForm(format, row_words, _repack)


def _repack(raw: Bank, bank: Bank) -> list[Dispatch]:
    spec = FORMATS[raw.format]
    constants = {
        "ROWS": raw.rows,
        "RAW_ROW_WORDS": raw.row_words,
        "BLOCKS": blocks_of(raw.format, raw.columns),
        "BLOCK_BYTES": spec.file_bytes,
        "HEAD_BYTES": spec.head_bytes,
        "BLOCK_WORDS": spec.block_words,
        "ROW_BYTES": raw.columns * spec.file_bytes // spec.elements,
    }
    return _repack_dispatch("repack", constants, raw, bank)


def _repack_q6_k(raw: Bank, bank: Bank) -> list[Dispatch]:
    constants = {
        "ROWS": raw.rows,
        "RAW_ROW_WORDS": raw.row_words,
        "BLOCKS": blocks_of("q6_k", raw.columns),
    }
    return _repack_dispatch("repack_q6_k", constants, raw, bank)


def _repack_dispatch(name: str, constants: dict[str, int], raw: Bank, bank: Bank) -> list[Dispatch]:
    values = tuple((key, float(value)) for key, value in constants.items())
    kernel = Kernel(name, compose(name), ("read", "write"), values)
    return [Dispatch(kernel, (raw.buffer, bank.buffer), (REPACK_GRID, 1, 1))]
