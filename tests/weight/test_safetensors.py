"""Safetensors: headers, empty tensors, and files that lie."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers.files import safetensors_bytes, write_safetensors
from zllm.errors import LoadError
from zllm.weight.byte_source import BytesSource, FileSource
from zllm.weight.linear_weight import F16, F32, Quantized
from zllm.weight.safetensors import Safetensors, open_safetensors


def parse(data: bytes) -> Safetensors:
    return open_safetensors(BytesSource(data, "m.safetensors"))


def entry(dtype: Any = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def with_header(header: Any, size: int = 8) -> bytes:
    return safetensors_bytes(json.dumps(header), bytes(size))


def test_reads_back_what_was_written(tmp_path: Path) -> None:
    w = np.arange(6, dtype=np.float32).reshape(2, 3)
    ids = np.array([1, 2], np.int32)
    got = open_safetensors(
        FileSource(write_safetensors(tmp_path / "m.safetensors", {"w": w, "ids": ids}))
    ).tensors
    assert isinstance(got["w"], F32) and got["w"].shape == (2, 3)
    np.testing.assert_array_equal(np.frombuffer(got["w"].data.read(), "<f4"), w.reshape(-1))
    assert isinstance(got["ids"], Quantized) and got["ids"].format == "i32"


def test_header_may_be_padded_and_has_metadata() -> None:
    text = json.dumps({"__metadata__": {"format": "pt"}, "w": entry()}) + "   "
    got = parse(safetensors_bytes(text, bytes(8)))
    assert got.metadata == {"format": "pt"} and list(got.tensors) == ["w"]


def test_case_a02(data_dir: Path) -> None:
    folder = data_dir / "cases" / "safetensors"
    got = open_safetensors(FileSource(folder / "empty_tensors.safetensors")).tensors
    assert np.frombuffer(got["b"].data.read(), "<f4").tolist() == [1.5, -2]
    assert got["flag"].shape == (0,) and bytes(got["flag"].data.read()) == b""
    assert isinstance(got["m"], F16) and got["m"].shape == (2, 0)
    with pytest.raises(LoadError, match="takes 4 bytes, data_offsets give 0"):
        open_safetensors(FileSource(folder / "short_tensor.safetensors"))


DOUBLE = '{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"w":{"dtype":"F32"}}'
HOSTILE = {
    "empty": (b"", "0 bytes, no room"),
    "short": (bytes(7), "7 bytes, no room"),
    "header-past-end": (struct.pack("<Q", 9) + b"{}", "header of 9 bytes, at most 2"),
    "header-huge": (struct.pack("<Q", (1 << 64) - 1) + b"{}", "header of 18446744073709551615"),
    "not-json": (safetensors_bytes("{nope", b""), "not valid JSON"),
    "not-object": (safetensors_bytes("[]", b""), "starts with b'\\['"),
    "padded-before": (safetensors_bytes(" {}", b""), "starts with b' '"),
    "not-utf8": (struct.pack("<Q", 3) + b'{"\xff', "not UTF-8"),
    "deep": (safetensors_bytes('{"a":' + "[" * 100_000, b""), "not valid JSON"),
    "twice": (safetensors_bytes(DOUBLE, bytes(8)), "'w' appears twice"),
    "metadata": (with_header({"__metadata__": {"a": 1}}, 0), "__metadata__: expected"),
    "entry": (with_header({"w": 3}), "tensor 'w': expected dtype, shape"),
    "entry-extra": (with_header({"w": {**entry(), "x": 1}}), "expected dtype, shape"),
    "dtype": (with_header({"w": entry(dtype="F31")}), "unknown dtype 'F31'"),
    "dtype-list": (with_header({"w": entry(dtype=[])}), "unknown dtype"),
    "shape-negative": (with_header({"w": entry(shape=[-2])}), "shape \\[-2\\]"),
    "shape-bool": (with_header({"w": entry(shape=[True, 2])}), "expected a list of counts"),
    "shape-float": (with_header({"w": entry(shape=[2.0])}), "expected a list of counts"),
    "shape-long": (with_header({"w": entry(shape=[1 << 62] * 33)}), "expected a list of counts"),
    "shape-count": (with_header({"w": entry(shape=[10**4000, 0])}), "expected a list of counts"),
    "shape-overflow": (with_header({"w": entry(shape=[1 << 40] * 4)}), "data_offsets give 8"),
    "offsets-order": (with_header({"w": entry(offsets=[8, 0])}), "expected \\[begin, end\\]"),
    "offsets-three": (with_header({"w": entry(offsets=[0, 8, 8])}), "expected \\[begin, end\\]"),
    "offsets-size": (
        with_header({"w": entry(offsets=[0, 4])}),
        "takes 8 bytes, data_offsets give 4",
    ),
    "past-end": (with_header({"w": entry()}, 7), "data ends at 8, the file has 7"),
    "overlap": (
        with_header({"v": entry(), "w": entry(offsets=[4, 12])}, 12),
        "overlaps tensor 'v'",
    ),
    "same-place": (with_header({"v": entry(), "w": entry()}), "overlaps"),
    "hole": (
        with_header({"v": entry(), "w": entry(offsets=[12, 20])}, 20),
        "tensor 'w': data at 12 leaves a hole after tensor 'v'",
    ),
    "hole-before": (with_header({"w": entry(offsets=[4, 12])}, 12), "a hole after the header"),
    "data-after": (with_header({"w": entry()}, 9), "take 8 bytes, the file has 9"),
}


@pytest.mark.parametrize(("data", "message"), HOSTILE.values(), ids=HOSTILE)
def test_hostile_file(data: bytes, message: str) -> None:
    with pytest.raises(LoadError, match=message) as caught:
        parse(data)
    assert str(caught.value).startswith("m.safetensors: ")
