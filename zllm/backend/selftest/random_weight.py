"""Weights in memory: given numbers as f32, or seeded random ones in any stored format."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zllm.quant import formats
from zllm.quant.block_scaled import BlockScaleSpec, grid_shape
from zllm.quant.float8 import E4M3, E5M2
from zllm.quant.packed_int import WORD_BITS, PackedIntSpec
from zllm.quant.random_blocks import near_one, random_blocks
from zllm.quant.transposed import TransposedSpec
from zllm.weight.linear_weight import Encoded, LinearWeight, OneTensor, stored

Shape = tuple[int, int]
GROUP = 32  # inputs that share a scale


@dataclass(frozen=True, slots=True)
class Held:
    """The bytes of an array."""

    array: NDArray[Any]

    @property
    def size_bytes(self) -> int:
        return self.array.nbytes

    def read(self, offset_bytes: int = 0, size_bytes: int | None = None, /) -> memoryview:
        data = self.array.reshape(-1).view(np.uint8).data
        end = self.size_bytes if size_bytes is None else offset_bytes + size_bytes
        return data[offset_bytes:end]


def held(format: str, array: NDArray[Any], shape: tuple[int, ...] | None = None) -> OneTensor:
    """An array's bytes as a stored tensor."""
    array = np.ascontiguousarray(array)
    return stored(format, array.shape if shape is None else shape, Held(array))


def dense(values: NDArray[Any]) -> OneTensor:
    """Numbers as an f32 weight of the same shape."""
    return held("f32", np.asarray(values, np.float32))


def random_weight(rng: np.random.Generator, format: str, shape: Shape) -> LinearWeight:
    """A matrix [N, D] whose values are near 1, in a codec of `zllm.quant.formats` or in SCHEMES.

    ValueError if D is no whole number of the format's blocks.
    """
    if format in SCHEMES:
        return SCHEMES[format](rng, shape)
    formats.row_bytes(format, shape[1])
    return held(format, random_blocks(rng, format, *shape), shape)


def block_elements(format: str) -> int:
    """D is a multiple of it."""
    if format in SCHEMES:
        return 1 if format == "transposed" else GROUP
    return formats.lookup(format).block_elements


def row_multiple(format: str) -> int:
    """N is a multiple of it: outputs that share a word."""
    return 8 if format.startswith(("gptq", "awq")) else 1


def _scaled(rng: np.random.Generator, shape: Shape, format: str, block: Shape) -> LinearWeight:
    """Codes times a grid of scales."""
    rows, columns = shape
    if format == "scaled_e2m1":
        codes = rng.integers(0, 256, (rows, columns // 2), dtype=np.uint8)
    elif format == "scaled_i8":
        codes = rng.integers(0, 256, shape, dtype=np.uint8)
    else:
        codes = near_one(rng, E4M3 if format == "scaled_e4m3" else E5M2, shape)
    spec = BlockScaleSpec(*block, rows)
    size = 0.01 if format == "scaled_i8" else 0.5
    grid = rng.standard_normal(grid_shape(spec, rows, columns)) * size
    return Encoded(shape, Held(codes), format, {"scale": dense(grid)}, spec)


def _words(rng: np.random.Generator, *shape: int) -> OneTensor:
    return held("i32", rng.integers(-(1 << 31), 1 << 31, shape, dtype=np.int32))


def _gptq(rng: np.random.Generator, shape: Shape, bits: int) -> LinearWeight:
    rows, columns = shape
    groups = -(-columns // GROUP)
    aux = {"scales": dense(rng.standard_normal((groups, rows)) * 2.0 ** (2 - bits))}
    if bits == 8:  # symmetric: with 1 added every zero point is 128
        zeros = np.full((groups, rows), 127, np.uint8)
        aux["qzeros"] = held("i32", zeros.view(np.int32))
    else:
        aux["qzeros"] = _words(rng, groups, rows * bits // WORD_BITS)
    data = _words(rng, columns * bits // WORD_BITS, rows).data
    return Encoded(shape, data, "gptq", aux, PackedIntSpec(bits, GROUP, zero_offset=1))


def _awq(rng: np.random.Generator, shape: Shape) -> LinearWeight:
    rows, columns = shape
    groups = -(-columns // GROUP)
    aux: Mapping[str, OneTensor] = {
        "scales": dense(rng.standard_normal((groups, rows)) * 0.25),
        "qzeros": _words(rng, groups, rows // 8),
    }
    return Encoded(shape, _words(rng, columns, rows // 8).data, "awq", aux, PackedIntSpec(4, GROUP))


def _packed(rng: np.random.Generator, shape: Shape, bits: int) -> LinearWeight:
    rows, columns = shape
    scale = rng.standard_normal((rows, -(-columns // GROUP))) * 2.0 ** (2 - bits)
    data = _words(rng, rows, columns * bits // WORD_BITS).data
    return Encoded(shape, data, "packed_int", {"scale": dense(scale)}, PackedIntSpec(bits, GROUP))


def _transposed(rng: np.random.Generator, shape: Shape) -> LinearWeight:
    rows, columns = shape
    data = Held(random_blocks(rng, "bf16", columns, rows))
    return Encoded(shape, data, "transposed", {}, TransposedSpec("bf16", columns, rows))


SCHEMES: dict[str, Callable[[np.random.Generator, Shape], LinearWeight]] = {
    "scaled_e4m3": lambda rng, shape: _scaled(rng, shape, "scaled_e4m3", (8, GROUP)),
    "scaled_e5m2": lambda rng, shape: _scaled(rng, shape, "scaled_e5m2", (1, shape[1])),
    "scaled_e2m1": lambda rng, shape: _scaled(rng, shape, "scaled_e2m1", (1, 16)),
    "scaled_i8": lambda rng, shape: _scaled(rng, shape, "scaled_i8", (1, shape[1])),
    "gptq": lambda rng, shape: _gptq(rng, shape, 4),
    "gptq_8": lambda rng, shape: _gptq(rng, shape, 8),
    "awq": _awq,
    "packed_int": lambda rng, shape: _packed(rng, shape, 4),
    "packed_int_8": lambda rng, shape: _packed(rng, shape, 8),
    "transposed": _transposed,
}
