"""Arrays as stored tensors, for tests of quantised weights."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from zllm.weight.byte_source import BytesSource, TensorBytes
from zllm.weight.linear_weight import OneTensor, stored

_FORMATS = {
    "float32": "f32",
    "float16": "f16",
    "uint8": "u8",
    "int8": "i8",
    "int32": "i32",
    "int64": "i64",
}


def tensor(values: NDArray[Any], format: str = "") -> OneTensor:
    """A stored tensor of an array's bytes; `format` where the bytes mean something else."""
    values = np.asarray(values)
    raw = values.tobytes()
    data = TensorBytes(BytesSource(b"before" + raw), 6, len(raw))
    return stored(format or _FORMATS[values.dtype.name], values.shape, data)


def assert_same_bits(got: NDArray[np.float32], want: NDArray[np.float32]) -> None:
    """Equal bit for bit, all NaNs being one."""
    assert got.shape == want.shape and got.dtype == np.float32
    nan = np.isnan(want)
    np.testing.assert_array_equal(np.isnan(got), nan)
    np.testing.assert_array_equal(got.view(np.uint32)[~nan], want.view(np.uint32)[~nan])
