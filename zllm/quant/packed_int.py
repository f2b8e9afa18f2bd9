"""Small integers in 32-bit words, with a scale and a zero point per group: GPTQ, AWQ and
compressed-tensors' pack-quantized.

All give W = scale · (q - zero) in float32 and differ in what shares a word. Layouts: AutoGPTQ and
GPTQModel `qlinear_torch`; AutoAWQ `utils/packing_utils.py`; vllm-project/compressed-tensors
`compressors/pack_quantized.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from zllm.quant.stored import EncodedWeight, floats_of, words_of

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]

WORD_BITS = 32
# Nibble k of an AWQ word holds output (0, 2, 4, 6, 1, 3, 5, 7)[k]; here the nibble of an output.
AWQ_NIBBLE = np.array([0, 4, 1, 5, 2, 6, 3, 7])


@dataclass(frozen=True, slots=True)
class PackedIntSpec:
    """`bits` divides 32. `group_size` inputs share a scale, unless `g_idx` says whose each is."""

    bits: int
    group_size: int
    zero_offset: int = 0  # what is added to a stored zero point


def decode_gptq(weight: EncodedWeight, first: int, count: int, out: F32) -> None:
    """data: i32 [K·bits/32, N], inputs share a word, low bits first.

    aux: `qzeros` i32 [groups, N·bits/32], outputs share a word; `scales` [groups, N]; perhaps
    `g_idx` i32 [K], the group of each input.
    """
    spec: PackedIntSpec = weight.spec
    columns = weight.shape[-1]
    words = _words(weight, spec.bits * columns // WORD_BITS)[:, first : first + count]
    codes = _fields(words[:, None, :], _shifts(spec.bits)[None, :, None], spec.bits)
    outputs = np.arange(first, first + count)
    zeros = _of_outputs(words_of(weight.aux["qzeros"]), outputs, spec.bits)
    scales = floats_of(weight.aux["scales"])[:, outputs]
    _by_inputs(weight, codes.reshape(columns, count), zeros + spec.zero_offset, scales, out)


def decode_awq(weight: EncodedWeight, first: int, count: int, out: F32) -> None:
    """data: i32 [K, N/8], outputs share a word in AWQ's order.

    aux: `qzeros` i32 [groups, N/8]; `scales` [groups, N].
    """
    outputs = np.arange(first, first + count)
    order = outputs // 8 * 8 + AWQ_NIBBLE[outputs % 8]
    words = _words(weight, weight.shape[-1])
    codes = _of_outputs(words, order, 4)
    zeros = _of_outputs(words_of(weight.aux["qzeros"]), order, 4)
    scales = floats_of(weight.aux["scales"])[:, outputs]
    _by_inputs(weight, codes, zeros, scales, out)


def decode_packed(weight: EncodedWeight, first: int, count: int, out: F32) -> None:
    """data: i32 [N, K·bits/32], inputs share a word; 2^(bits-1) was added to values and zeros.

    aux: `scale` [N, groups]; perhaps `zero` i32 [N·bits/32, groups], outputs share a word, and
    `g_idx` i32 [K].
    """
    spec: PackedIntSpec = weight.spec
    columns = weight.shape[-1]
    row_words = -(-columns * spec.bits // WORD_BITS)
    data = weight.data.read(4 * first * row_words, 4 * count * row_words)
    words = np.frombuffer(data, "<u4").reshape(count, row_words, 1)
    codes = _fields(words, _shifts(spec.bits), spec.bits).reshape(count, -1)[:, :columns]
    group = _groups(weight)
    outputs = np.arange(first, first + count)
    if "zero" in weight.aux:
        zeros = _of_outputs(words_of(weight.aux["zero"]).T, outputs, spec.bits).T
        np.subtract(codes, zeros[:, group], out=out, casting="unsafe")
    else:
        np.subtract(codes, 1 << (spec.bits - 1), out=out, casting="unsafe")
    out *= floats_of(weight.aux["scale"])[first : first + count][:, group]


def scale_rows(weight: EncodedWeight, first: int, count: int) -> F32:
    """The scales of rows first … first + count: [count, groups]."""
    if weight.format == "packed_int":
        return floats_of(weight.aux["scale"])[first : first + count]
    return floats_of(weight.aux["scales"])[:, first : first + count].T


def _by_inputs(weight: EncodedWeight, codes: I32, zeros: I32, scales: F32, out: F32) -> None:
    """codes [K, count], zeros and scales [groups, count] -> out [count, K]."""
    group = _groups(weight)
    np.subtract(codes.T, zeros[group].T, out=out, casting="unsafe")
    out *= scales[group].T


def _groups(weight: EncodedWeight) -> NDArray[np.int64]:
    """The group of each input [K]."""
    if "g_idx" in weight.aux:
        return words_of(weight.aux["g_idx"]).astype(np.int64)
    spec: PackedIntSpec = weight.spec
    return np.arange(weight.shape[-1]) // spec.group_size


def _words(weight: EncodedWeight, rows: int) -> NDArray[np.uint32]:
    return np.frombuffer(weight.data.read(), "<u4").reshape(rows, -1)


def _shifts(bits: int) -> NDArray[np.uint32]:
    return np.arange(0, WORD_BITS, bits, dtype=np.uint32)


def _fields(words: NDArray[np.uint32], shifts: NDArray[np.uint32], bits: int) -> I32:
    fields: I32 = ((words >> shifts) & np.uint32((1 << bits) - 1)).astype(np.int32)
    return fields


def _of_outputs(
    words: NDArray[np.int32] | NDArray[np.uint32], outputs: NDArray[np.int64], bits: int
) -> I32:
    """Fields `outputs` of rows [M, N·bits/32] whose fields share words: [M, count]."""
    per_word = WORD_BITS // bits
    shifts = (outputs % per_word * bits).astype(np.uint32)
    return _fields(words.astype(np.uint32)[:, outputs // per_word], shifts, bits)
