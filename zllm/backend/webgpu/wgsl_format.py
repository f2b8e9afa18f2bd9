"""How each stored format lies on the device and which WGSL decodes it.

| stored as | resident as | bits a weight |
|---|---|---|
| f32, f16, bf16, and these `transposed` | stored, turned on the host | the same |
| q4_0, q4_1, q8_0, q6_k | integers of a row, then scales | the same; q6_k 7 |
| q5_0, q5_1, q4_k, q5_k, iq4_nl, mxfp4 | planes of 4, 2 and 1 bits, then scales | the same |
| q2_k, q3_k, iq4_xs, nvfp4 | the same with wider scales | 4, 4, 5, 5 |
| tq1_0, tq2_0, q1_0, q2_0 | codes of two bits | 3 |
| scaled_e4m3, scaled_e5m2: FP8, MXFP8 | codes, f32 per 32 | 9 |
| q8_k; symmetric scaled_i8, gptq and packed_int of 8 bits | codes, f32 per 32 | 9 |
| scaled_e2m1: MXFP4, NVFP4 | codes, f32 per 16 | 6 |
| gptq, awq, packed_int of at most 4 bits | q - zero in five bits, f32 per 32 | 6 |
| iq1_s … iq3_s | grid points times signs in eight bits, f32 per 16 | 10 |
| all others: f8_*, f64, apart, 8 bits with zero points, inputs in \
groups by `g_idx`, groups that do not fill 32 (E2M1: 16) | decoded on the host: f32 | 32 |

Decoded values are those of `zllm.quant` bit for bit, but that a device may flush subnormal numbers.
Blocks of GGUF are rearranged by a kernel, IQ1 to IQ3 and schemes of several tensors by `host_rows`.
"""

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
class Planes:
    """Codes of `bits` bits in planes (codes.wgsl), then the row's scales."""

    bits: int
    scales: str  # the source that reads them
    scale_bits: int  # of a block of 32

    def words(self, blocks: int) -> tuple[int, int]:
        """Of a row: of codes, of scales."""
        return self.bits * blocks, ceil_div(self.scale_bits * blocks, 32)


@dataclass(frozen=True, slots=True)
class WgslFormat:
    """The file's block of `elements` is `scale_bytes`, then integers; on the device a row is the
    integers of all blocks, then the scales of all blocks. Or `planes`, of blocks of 32.
    """

    elements: int
    block_bytes: int
    scale_bytes: int
    sources: tuple[str, ...]
    planes: Planes | None = None

    def blocks(self, columns: int) -> int:
        """Of a row; plain floats fill the last one with zeros."""
        return ceil_div(columns, self.elements)


def _integers(bits: int, zero: int, scales: str, scale_bits: int) -> WgslFormat:
    """s (q - zero) + m."""
    values = ("spread", f"zero_{zero}", "values_integer")
    return _planes(values, Planes(bits, scales, scale_bits))


def _listed(values: str, scales: str, scale_bits: int) -> WgslFormat:
    """s times an entry of a list of 16."""
    return _planes((f"list_{values}", "values_list"), Planes(4, scales, scale_bits))


def _planes(values: tuple[str, ...], planes: Planes) -> WgslFormat:
    codes = ("codes_8",) if planes.bits == 8 else (f"codes_{planes.bits}", "codes")
    scales = ("scales", "factors", planes.scales)
    sources = ("x_alone", "block32", "words", *codes, *values, *scales, "decode_scaled")
    return WgslFormat(32, 0, 0, sources, planes)


# As files have them.
STORED = {
    "f32": WgslFormat(8, 32, 0, ("block8", "decode_f32")),
    "f16": WgslFormat(8, 16, 0, ("block8", "decode_f16")),
    "bf16": WgslFormat(8, 16, 0, ("block8", "decode_bf16")),
    "q4_0": WgslFormat(32, 18, 2, ("x_alone", "block32", "spread_nibbles", "decode_q4_0")),
    "q4_1": WgslFormat(32, 20, 4, ("x_alone", "block32", "spread_nibbles", "decode_q4_1")),
    "q8_0": WgslFormat(32, 34, 2, ("x_alone", "block32", "spread", "decode_q8_0")),
    # Cut into blocks of 32: 16 bytes of nibbles, 8 of upper bits, and 4 of scales.
    "q6_k": WgslFormat(32, 28, 4, ("x_alone", "block32", "spread", "decode_q6_k")),
    "q5_0": _integers(5, 16, "scales_f16", 16),
    "q5_1": _integers(5, 0, "scales_f16_min", 32),
    "q2_k": _integers(2, 0, "scales_i8_min", 64),
    "q3_k": _integers(3, 4, "scales_i8", 32),
    "q4_k": _integers(4, 0, "scales_k", 16),
    "q5_k": _integers(5, 0, "scales_k", 16),
    "iq4_nl": _listed("iq4", "scales_f16", 16),
    "iq4_xs": _listed("iq4", "scales_i8", 32),
    "mxfp4": _listed("e2m1", "scales_e8m0", 8),
    "nvfp4": _listed("e2m1", "scales_f16_pair", 32),
    "tq1_0": _integers(2, 1, "scales_i8", 32),
    "tq2_0": _integers(2, 1, "scales_i8", 32),
    "q1_0": _integers(2, 1, "scales_i8", 32),
    "q2_0": _integers(2, 1, "scales_i8", 32),
}
# As host_rows writes them.
CODED = {
    "e4m3": _planes(("values_e4m3",), Planes(8, "scales_f32", 32)),
    "e5m2": _planes(("values_e5m2",), Planes(8, "scales_f32", 32)),
    "e2m1": _listed("e2m1", "scales_f32_pair", 64),
    "int5": _integers(5, 16, "scales_f32", 32),
    "int8": _integers(8, 128, "scales_f32", 32),
    "int8_pair": _integers(8, 128, "scales_f32_pair", 64),
}
FORMATS = STORED | CODED


def resident(format: str, columns: int) -> ResidentForm:
    """How rows of a stored matrix lie on the device; KeyError if no kernel decodes the format."""
    spec = FORMATS[format]
    blocks = spec.blocks(columns)
    if spec.planes is not None:
        row_words = ceil_div(sum(spec.planes.words(blocks)), ROW_WORDS) * ROW_WORDS
        if format in CODED:
            return ResidentForm(format, row_words)
        return ResidentForm(format, row_words, partial(_repack_codes, format))
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
    return _repack_dispatch("repack", ("repack",), values, raw, bank)


def _repack_q6_k(raw: Bank, bank: Bank) -> list[Dispatch]:
    values = {
        "ROWS": raw.rows,
        "RAW_ROW_WORDS": raw.row_words,
        "BLOCKS": FORMATS["q6_k"].blocks(raw.columns),
    }
    return _repack_dispatch("repack_q6_k", ("repack_q6_k",), values, raw, bank)


def _repack_codes(format: str, raw: Bank, bank: Bank) -> list[Dispatch]:
    spec = FORMATS[format]
    planes = spec.planes
    assert planes is not None
    blocks = spec.blocks(raw.columns)
    values = {
        "ROWS": raw.rows,
        "RAW_ROW_WORDS": raw.row_words,
        "ROW_WORDS": bank.row_words,
        "BLOCKS": blocks,
        "SCALE_WORDS": planes.words(blocks)[1],
    }
    sources = (f"codes_{planes.bits}", f"from_{format}", "repack_codes")
    return _repack_dispatch(f"repack_{format}", sources, values, raw, bank)


def _repack_dispatch(
    name: str, sources: tuple[str, ...], values: dict[str, int], raw: Bank, bank: Bank
) -> list[Dispatch]:
    kernel = Kernel(name, compose(*sources), ("read", "write"), constants(values))
    return [Dispatch(kernel, (raw.buffer, bank.buffer), (REPACK_GRID, 1, 1))]
