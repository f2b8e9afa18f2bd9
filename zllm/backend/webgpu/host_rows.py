"""Weights of several tensors as rows that a kernel decodes: codes in planes, then f32 scales.

The table in `wgsl_format` says which weights these are. Every value stays as `zllm.quant` has it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from zllm.backend.webgpu.iq_codes import LAYOUTS as IQ
from zllm.backend.webgpu.iq_codes import codes_and_scales
from zllm.backend.webgpu.wgsl_format import STORED
from zllm.quant import block_scaled, formats, packed_int
from zllm.quant.block_scaled import BlockScaleSpec
from zllm.quant.gguf_k import BLOCK_ELEMENTS, Q8_K_BYTES
from zllm.quant.packed_int import PackedIntSpec
from zllm.quant.stored import words_of
from zllm.quant.weights import decode_rows
from zllm.weight.linear_weight import F32 as Floats
from zllm.weight.linear_weight import Encoded, LinearWeight, OneTensor

F32 = NDArray[np.float32]
U8 = NDArray[np.uint8]

BLOCK = 32  # elements
SCALED = {"scaled_e4m3": "e4m3", "scaled_e5m2": "e5m2", "scaled_e2m1": "e2m1", "scaled_i8": "int8"}


@dataclass(frozen=True, slots=True)
class Ones:
    """The bytes of f32 ones."""

    size_bytes: int

    def read(self, offset_bytes: int = 0, size_bytes: int | None = None, /) -> memoryview:
        size = self.size_bytes - offset_bytes if size_bytes is None else size_bytes
        return np.ones(size // 4, np.float32).data.cast("B")


def resident_format(weight: LinearWeight) -> str:
    """The key of `wgsl_format.FORMATS` in which a matrix [N, D] lies on the device."""
    if weight.format in STORED:
        return weight.format
    if weight.format in IQ:
        return "int8_pair"
    if weight.format == "q8_k":
        return "int8"
    if not isinstance(weight, Encoded):
        return "f32"
    if weight.format == "transposed":
        return weight.spec.format if weight.spec.format in ("f16", "bf16") else "f32"
    if weight.shape[-1] % BLOCK:
        return "f32"
    if isinstance(weight.spec, BlockScaleSpec):
        return _of_scaled(weight, weight.spec)
    if isinstance(weight.spec, PackedIntSpec):
        return _of_packed(weight, weight.spec)
    return "f32"


def _of_scaled(weight: Encoded, spec: BlockScaleSpec) -> str:
    coded = SCALED[weight.format]
    run = 16 if coded == "e2m1" else BLOCK
    whole = spec.columns % run == 0 or spec.columns >= weight.shape[-1]
    return coded if whole and "zero" not in weight.aux else "f32"


def _of_packed(weight: Encoded, spec: PackedIntSpec) -> str:
    if spec.group_size % BLOCK or "g_idx" in weight.aux:
        return "f32"
    if spec.bits <= 4:
        return "int5"
    return "int8" if spec.bits == 8 and _zeros_are_128(weight, spec) else "f32"


def _zeros_are_128(weight: Encoded, spec: PackedIntSpec) -> bool:
    """Of bytes: whether q - zero is a signed byte, as in symmetric quantisation."""
    zeros = weight.aux.get("zero") or weight.aux.get("qzeros")
    if zeros is None:
        return True
    return bool((words_of(zeros).view(np.uint8) == 128 - spec.zero_offset).all())


def host_rows(weight: LinearWeight, first: int, count: int) -> U8:
    """Rows first … first + count in the resident format, not yet padded: [count, row bytes]."""
    form = resident_format(weight)
    if form in ("f32", "f16", "bf16"):
        parts = [_floats(form, decode_rows(weight, first, count))]
    elif not isinstance(weight, Encoded):
        parts = [*_of_blocks(weight, first, count)]
    else:
        run = 16 if form == "e2m1" else BLOCK
        scales = _spread(_scales(weight, first, count), weight, run)
        # The kernel's list of E2M1 is doubled.
        halved = scales * np.float32(0.5) if form == "e2m1" else scales
        parts = [*_planes(form, _codes(weight, form, first, count)), halved]
    return np.concatenate([p.reshape(count, -1).view(np.uint8) for p in parts], axis=1)


def _of_blocks(weight: OneTensor, first: int, count: int) -> tuple[U8, F32]:
    """Codes and scales of GGUF blocks."""
    columns = weight.shape[-1]
    per_row = formats.row_bytes(weight.format, columns)
    raw = np.frombuffer(weight.data.read(first * per_row, count * per_row), np.uint8)
    if weight.format in IQ:
        return codes_and_scales(weight.format, raw.reshape(count, per_row), columns)
    blocks = raw.reshape(-1, Q8_K_BYTES)
    d = np.ascontiguousarray(blocks[:, :4]).view("<f4")
    return blocks[:, 4:260] ^ np.uint8(0x80), np.repeat(d, BLOCK_ELEMENTS // BLOCK, axis=1)


def _floats(form: str, values: F32) -> NDArray[np.generic]:
    """Values that came from the format, so that nothing is rounded."""
    if form == "f16":
        return values.astype("<f2")
    if form == "bf16":
        return np.ascontiguousarray(values.view("<u2")[:, 1::2])
    return values


def _scales(weight: Encoded, first: int, count: int) -> F32:
    """[count, runs] or [count, 1]."""
    if isinstance(weight.spec, BlockScaleSpec):
        return block_scaled.scale_rows(weight, weight.first_row + first, count)
    return packed_int.scale_rows(weight, weight.first_row + first, count)


def _spread(scales: F32, weight: Encoded, run: int) -> F32:
    """[count, groups] -> [count, runs of `run` elements]."""
    columns = weight.shape[-1]
    spec = weight.spec
    group = spec.columns if isinstance(spec, BlockScaleSpec) else spec.group_size
    index = np.minimum(np.arange(0, columns, run) // max(group, 1), scales.shape[1] - 1)
    return np.ascontiguousarray(scales[:, index])


def _codes(weight: Encoded, form: str, first: int, count: int) -> U8:
    """[count, columns], as the kernel's values_… read them."""
    columns = weight.shape[-1]
    if isinstance(weight.spec, PackedIntSpec):
        plain = replace(weight, aux=_ones(weight))
        zero = 16 if form == "int5" else 128
        codes: U8 = (decode_rows(plain, first, count) + np.float32(zero)).astype(np.uint8)
        return codes
    per_row = columns // 2 if form == "e2m1" else columns
    data = weight.data.read((weight.first_row + first) * per_row, count * per_row)
    stored = np.frombuffer(data, np.uint8).reshape(count, per_row)
    if form == "e2m1":
        return np.stack([stored & 15, stored >> 4], axis=2).reshape(count, columns)
    return stored ^ np.uint8(0x80) if form == "int8" else stored


def _ones(weight: Encoded) -> Mapping[str, OneTensor]:
    """The further tensors with every scale 1, so that decoding gives the integers."""
    name = "scale" if weight.format == "packed_int" else "scales"
    shape = weight.aux[name].shape
    return {**weight.aux, name: Floats(shape, Ones(4 * math.prod(shape)))}


def _planes(form: str, codes: U8) -> list[U8]:
    """As codes.wgsl reads them: nibbles and upper bits, or bytes."""
    if form not in ("e2m1", "int5"):
        return [codes]
    lanes = codes.reshape(len(codes), -1, 2, 4, 4)  # block, half, quad, byte of a word
    nibbles = ((lanes[:, :, 0] & 15) | (lanes[:, :, 1] << 4)).astype(np.uint8)
    if form == "e2m1":
        return [nibbles]
    places = np.arange(8, dtype=np.uint8).reshape(2, 4, 1)
    upper: U8 = np.bitwise_or.reduce(((lanes >> 4) << places).astype(np.uint8), axis=(2, 3))
    return [nibbles, upper]
