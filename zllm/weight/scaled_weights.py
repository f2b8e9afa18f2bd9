"""Codes with a grid of scales: FP8, MXFP8, MXFP4, NVFP4 and INT8 as safetensors hold them."""

from __future__ import annotations

import math
from dataclasses import replace

from zllm.errors import LoadError
from zllm.quant.block_scaled import BlockScaleSpec
from zllm.weight.linear_weight import Encoded, OneTensor, Quantized
from zllm.weight.quantization_config import Quantization, WeightArgs
from zllm.weight.siblings import Siblings, check_shape

MX_GROUP = 32  # OCP Microscaling Formats v1.0: block size of every MX format
NVFP4_GROUP = 16  # NVIDIA ModelOpt, NVFP4QTensor
_SCALES = ("f32", "f16", "bf16", "f8_e8m0", "f8_e4m3")


def blocks_and_scales(name: str, siblings: Siblings) -> Encoded:
    """gpt-oss: blocks u8 [E, N, K/32, 16] and scale bytes [E, N, K/32] -> a weight [E, N, K]."""
    blocks = siblings.needed(f"{name}_blocks", name)
    scales = siblings.needed(f"{name}_scales", name)
    if blocks.format != "u8" or len(blocks.shape) < 3 or blocks.shape[-1] != MX_GROUP // 2:
        raise LoadError(
            f"tensor {name + '_blocks'!r}: {blocks.format} {list(blocks.shape)}, expected u8 with"
            f" {MX_GROUP // 2} bytes in the last axis"
        )
    check_shape(f"{name}_scales", scales, blocks.shape[:-1])
    *outer, groups = blocks.shape[:-1]
    shape = (*outer, groups * MX_GROUP)
    spec = BlockScaleSpec(1, MX_GROUP, shape[-2])
    aux = {"scale": _exponents(scales)}
    return Encoded(shape, blocks.data, "scaled_e2m1", aux, spec, name=name)


def build(
    name: str, scale_name: str, siblings: Siblings, quantization: Quantization | None
) -> Encoded:
    """The weight whose codes are `name`, or LoadError naming what does not fit."""
    codes = siblings.tensors[name]
    scale = _exponents(siblings.needed(scale_name, name))
    if scale.format not in _SCALES:
        raise LoadError(f"tensor {scale_name!r}: a scale in {scale.format} is not supported")
    args = WeightArgs() if quantization is None else quantization.args(name)
    format = _format(name, codes, scale, quantization)
    shape = codes.shape
    if format == "scaled_e2m1":
        shape = (*shape[:-1], 2 * shape[-1])
    spec, grid = _grid(name, scale_name, shape, scale, _blocks(format, scale, args))
    aux = {"scale": replace(scale, shape=grid)}
    spec = _global(name, spec, aux, siblings)
    zero = siblings.optional(f"{name}_zero_point")
    if zero is not None and not _is_float(format):
        aux["zero"] = replace(check_shape(f"{name}_zero_point", zero, scale.shape), shape=grid)
    return Encoded(shape, codes.data, format, aux, spec, name=name)


def _exponents(scale: OneTensor) -> OneTensor:
    """A scale byte e means 2^(e - 127), whether its type says E8M0 or just U8."""
    return Quantized(scale.shape, scale.data, "f8_e8m0") if scale.format == "u8" else scale


def _is_float(format: str) -> bool:
    return format != "scaled_i8"


def _format(
    name: str, codes: OneTensor, scale: OneTensor, quantization: Quantization | None
) -> str:
    """The scheme: by the codes' type, and for bytes by their scales'."""
    if len(codes.shape) < 2:
        raise LoadError(f"tensor {name!r}: quantised, but no matrix: {list(codes.shape)}")
    if codes.format == "f8_e4m3" or codes.format == "f8_e5m2":
        return f"scaled_{codes.format[3:]}"
    if scale.format in ("f8_e8m0", "f8_e4m3") and codes.format in ("u8", "i8", "f4"):
        return "scaled_e2m1"
    if codes.format == "i8":
        return "scaled_i8"
    if codes.format == "u8" and quantization is not None and "fp8" in quantization.method:
        return "scaled_e4m3"
    raise LoadError(
        f"tensor {name!r}: {codes.format} codes with scales in {scale.format} are no scheme known"
        " here"
    )


def _blocks(format: str, scale: OneTensor, args: WeightArgs) -> list[tuple[int, int]]:
    """Block sizes that the config and the formats declare, none of them guessed from shapes."""
    blocks = [args.block] if args.block else []
    if args.group_size > 0:
        blocks.append((1, args.group_size))
    if format == "scaled_e2m1":
        blocks.append((1, MX_GROUP if scale.format == "f8_e8m0" else NVFP4_GROUP))
    elif scale.format == "f8_e8m0":
        blocks.append((1, MX_GROUP))
    return blocks


def _grid(
    name: str,
    scale_name: str,
    shape: tuple[int, ...],
    scale: OneTensor,
    blocks: list[tuple[int, int]],
) -> tuple[BlockScaleSpec, tuple[int, int]]:
    """The declared block whose grid the scale has: else one scale per row, matrix or tensor."""
    *outer, rows, columns = shape
    stack = math.prod(outer)
    stored = scale.shape
    if len(stored) == len(shape) + 2 and stored[-3] == stored[-1] == 1:
        stored = (*stored[:-3], stored[-2])  # ModelOpt keeps the blocks' own axes
    for block_rows, block_columns in blocks:
        grid = (*outer, -(-rows // block_rows), -(-columns // block_columns))
        if stored == grid:
            spec = BlockScaleSpec(block_rows, block_columns, rows)
            return spec, (stack * grid[-2], grid[-1])
    if stored in ((*outer, rows, 1), (*outer, rows)):
        return BlockScaleSpec(1, columns, rows), (stack * rows, 1)
    if math.prod(stored) == 1:
        return BlockScaleSpec(stack * rows, columns, stack * rows), (1, 1)
    if outer and stored in (tuple(outer), (*outer, 1, 1)):
        return BlockScaleSpec(rows, columns, rows), (stack, 1)
    raise LoadError(_misfit(name, scale_name, shape, scale.shape, blocks))


def _misfit(
    name: str,
    scale_name: str,
    shape: tuple[int, ...],
    stored: tuple[int, ...],
    blocks: list[tuple[int, int]],
) -> str:
    *outer, rows, columns = shape
    grids = [
        f"{[*outer, -(-rows // r), -(-columns // c)]} for blocks of {r} x {c}" for r, c in blocks
    ]
    declared = " or ".join(grids) or "a block size, and the config declares none"
    return (
        f"tensor {scale_name!r}: shape {list(stored)} does not scale {name!r} {list(shape)};"
        f" expected {declared}"
    )


def _global(
    name: str, spec: BlockScaleSpec, aux: dict[str, OneTensor], siblings: Siblings
) -> BlockScaleSpec:
    """NVFP4's factor for the whole tensor: ModelOpt's multiplies, compressed-tensors' divides."""
    stem = name.removesuffix("_packed")
    for suffix, divide in (("_scale_2", False), ("_global_scale", True)):
        factor = siblings.optional(stem + suffix)
        if factor is not None:
            if math.prod(factor.shape) != 1 or factor.format not in _SCALES:
                raise LoadError(
                    f"tensor {stem + suffix!r}: {factor.format} {list(factor.shape)}, expected one"
                    " float"
                )
            aux["global"] = factor
            return replace(spec, divide_global=divide)
    return spec
