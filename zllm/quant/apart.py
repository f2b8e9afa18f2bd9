"""Keys and values of latent attention stored apart, where a weight's rows alternate by head."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from zllm.quant import formats
from zllm.quant.stored import EncodedWeight


@dataclass(frozen=True, slots=True)
class ApartSpec:
    """Per head n rows that unfold keys, then v rows that unfold values, of `columns` each.

    Those of keys are stored turned over, [H, columns, n] in `format`; those of values as they are,
    [H, v, columns] in the further tensor `values`: llama.cpp, convert_hf_to_gguf.py.
    """

    format: str
    keys: int  # n
    values: int  # v
    columns: int  # R


def decode_apart(weight: EncodedWeight, first: int, count: int, out: NDArray[np.float32]) -> None:
    """Rows first … first + count of all heads, one after the other -> out [count, columns]."""
    spec: ApartSpec = weight.spec
    done = 0
    while done < count:
        head, row = divmod(first + done, spec.keys + spec.values)
        end = spec.keys if row < spec.keys else spec.keys + spec.values
        taken = min(count - done, end - row)
        rows = out[done : done + taken]
        if row < spec.keys:
            rows[:] = _turned_keys(weight, head)[row : row + taken]
        else:
            _values(weight, head * spec.values + row - spec.keys, rows)
        done += taken


def _turned_keys(weight: EncodedWeight, head: int) -> NDArray[np.float32]:
    """[n, columns] of one head."""
    spec: ApartSpec = weight.spec
    size = spec.columns * formats.row_bytes(spec.format, spec.keys)
    return formats.decode(spec.format, weight.data.read(head * size, size), spec.keys).T


def _values(weight: EncodedWeight, first: int, out: NDArray[np.float32]) -> None:
    stored = weight.aux["values"]
    per_row = formats.row_bytes(stored.format, out.shape[1])
    data = stored.data.read(first * per_row, len(out) * per_row)
    formats.decode(stored.format, data, out.shape[1], out)
