"""Integers packed into words: GPTQ, AWQ and compressed-tensors as safetensors hold them."""

from __future__ import annotations

import numpy as np

from zllm.errors import LoadError
from zllm.quant.packed_int import WORD_BITS, PackedIntSpec
from zllm.weight import scaled_weights
from zllm.weight.linear_weight import Encoded, OneTensor
from zllm.weight.quantization_config import Quantization, WeightArgs
from zllm.weight.siblings import Siblings, check_shape


def build(name: str, stored: str, siblings: Siblings, quantization: Quantization) -> Encoded:
    """The weight `name` whose codes are the tensor `stored`; LoadError names what does not fit."""
    codes = siblings.tensors[stored]
    if stored.endswith("weight_packed"):
        if quantization.method != "compressed-tensors":
            raise _unexpected(stored, quantization)
        return _compressed(name, stored, codes, siblings, quantization)
    if codes.format != "i32" or len(codes.shape) != 2:
        raise LoadError(
            f"tensor {stored!r}: {codes.format} {list(codes.shape)}, expected a matrix of i32"
        )
    if quantization.method == "gptq":
        return _gptq(name, codes, siblings, quantization)
    if quantization.method == "awq":
        return _awq(name, codes, siblings, quantization)
    raise _unexpected(stored, quantization)


def _unexpected(stored: str, quantization: Quantization) -> LoadError:
    return LoadError(f"tensor {stored!r} does not belong to quant_method {quantization.method!r}")


def _gptq(name: str, codes: OneTensor, siblings: Siblings, quantization: Quantization) -> Encoded:
    args = quantization.args(name)
    module = name.removesuffix("weight")
    columns = codes.shape[0] * WORD_BITS // args.bits
    rows = codes.shape[1]
    scales = siblings.needed(f"{module}scales", name)
    groups, size = _groups(f"{module}scales", scales, 0, columns, args)
    check_shape(f"{module}scales", scales, (groups, rows))
    qzeros = siblings.needed(f"{module}qzeros", name)
    check_shape(f"{module}qzeros", qzeros, (groups, -(-rows * args.bits // WORD_BITS)))
    aux = {"scales": scales, "qzeros": qzeros}
    _add_g_idx(f"{module}g_idx", name, siblings, (columns, groups, size), aux)
    spec = PackedIntSpec(args.bits, size, quantization.zero_offset)
    return Encoded((rows, columns), codes.data, "gptq", aux, spec, name=name)


def _awq(name: str, codes: OneTensor, siblings: Siblings, quantization: Quantization) -> Encoded:
    args = quantization.args(name)
    module = name.removesuffix("weight")
    columns, words = codes.shape
    rows = words * WORD_BITS // args.bits
    scales = siblings.needed(f"{module}scales", name)
    groups, size = _groups(f"{module}scales", scales, 0, columns, args)
    check_shape(f"{module}scales", scales, (groups, rows))
    qzeros = siblings.needed(f"{module}qzeros", name)
    aux = {"scales": scales, "qzeros": check_shape(f"{module}qzeros", qzeros, (groups, words))}
    return Encoded(
        (rows, columns), codes.data, "awq", aux, PackedIntSpec(args.bits, size), name=name
    )


def _compressed(
    name: str, stored: str, codes: OneTensor, siblings: Siblings, quantization: Quantization
) -> Encoded:
    """pack-quantized words, or bytes of two E2M1 values (nvfp4- and mxfp4-pack-quantized)."""
    if codes.format == "u8":
        siblings.optional(f"{name}_shape")
        built = scaled_weights.build(stored, f"{name}_scale", siblings, quantization)
        return Encoded(built.shape, built.data, built.format, built.aux, built.spec, name=name)
    args = quantization.args(name)
    shape = tuple(siblings.integers(f"{name}_shape", name))
    if len(shape) != 2 or min(shape) < 0 or args.bits not in (4, 8):
        raise LoadError(
            f"tensor {stored!r}: {args.bits} bits of shape {list(shape)}, supported are matrices of"
            " 4 or 8"
        )
    rows, columns = shape
    expected = (rows, -(-columns * args.bits // WORD_BITS))
    if codes.format != "i32" or codes.shape != expected:
        raise LoadError(
            f"tensor {stored!r}: {codes.format} {list(codes.shape)}, expected i32 {list(expected)}"
            f" for {args.bits} bits of {list(shape)}"
        )
    scale = siblings.needed(f"{name}_scale", name)
    groups, size = _groups(f"{name}_scale", scale, -1, columns, args)
    aux = {"scale": check_shape(f"{name}_scale", scale, (rows, groups))}
    zero = siblings.optional(f"{name}_zero_point")
    if zero is not None:
        packed = (-(-rows * args.bits // WORD_BITS), groups)
        aux["zero"] = check_shape(f"{name}_zero_point", zero, packed)
    _add_g_idx(f"{name}_g_idx", name, siblings, (columns, groups, size), aux)
    return Encoded(shape, codes.data, "packed_int", aux, PackedIntSpec(args.bits, size), name=name)


def _groups(
    scale_name: str, scale: OneTensor, axis: int, columns: int, args: WeightArgs
) -> tuple[int, int]:
    """(groups of a row, inputs of a group). LoadError unless the scales have as many groups."""
    size = args.group_size if args.group_size > 0 else max(columns, 1)
    groups = -(-columns // size)
    if len(scale.shape) != 2 or scale.shape[axis] != groups:
        raise LoadError(
            f"tensor {scale_name!r}: shape {list(scale.shape)}, expected {groups} groups of {size}"
            f" for {columns} inputs"
        )
    return groups, size


def _add_g_idx(
    stored: str,
    name: str,
    siblings: Siblings,
    sizes: tuple[int, int, int],
    aux: dict[str, OneTensor],
) -> None:
    """The group of each input, where it is not simply its number divided by the group's size."""
    columns, groups, size = sizes
    tensor = siblings.optional(stored)
    if tensor is None:
        return
    if tensor.format != "i32":
        raise LoadError(f"tensor {stored!r}: {tensor.format}, expected i32")
    check_shape(stored, tensor, (columns,))
    found = np.frombuffer(tensor.data.read(), "<i4")
    # compressed-tensors fills an index that it never set with -1.
    plain = np.array_equal(found, np.arange(columns) // size) or bool((found == -1).all())
    if plain:
        return
    if found.min() < 0 or found.max() >= groups:
        raise LoadError(f"tensor {stored!r}: group {found.max()} of {name!r}, there are {groups}")
    aux["g_idx"] = tensor
