"""What the writer writes, the reader reads."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from zllm.weight.byte_source import FileSource
from zllm.weight.linear_weight import format_of
from zllm.weight.safetensors import open_safetensors
from zllm.weight.safetensors_writer import ALIGNMENT, DTYPES, write_safetensors


@pytest.mark.parametrize("dtype", DTYPES)
def test_round_trip(tmp_path: Path, dtype: str) -> None:
    arrays = {
        "b": np.arange(6).reshape(2, 3).astype(dtype),
        "a": np.arange(8).reshape(2, 4).astype(dtype)[:, ::2],
        "empty": np.zeros((0, 3), dtype),
    }
    write_safetensors(tmp_path / "m.safetensors", arrays)
    source = FileSource(tmp_path / "m.safetensors")
    found = open_safetensors(source).tensors
    assert list(found) == list(arrays)
    for name, array in arrays.items():
        weight = found[name]
        assert weight.shape == array.shape and format_of(weight) == DTYPES[dtype].lower()
        little = np.dtype(dtype).newbyteorder("<")
        values = np.frombuffer(bytes(weight.data.read()), little).reshape(weight.shape)
        np.testing.assert_array_equal(values, array)
    source.close()


def test_data_begins_aligned(tmp_path: Path) -> None:
    for length in range(1, 10):
        write_safetensors(tmp_path / "m.safetensors", {"x" * length: np.zeros(1, np.float32)})
        (size,) = struct.unpack("<Q", (tmp_path / "m.safetensors").read_bytes()[:8])
        assert size % ALIGNMENT == 0


def test_other_dtypes_are_not_written(tmp_path: Path) -> None:
    with pytest.raises(KeyError, match="float64"):
        write_safetensors(tmp_path / "m.safetensors", {"x": np.zeros(1, np.float64)})
