"""GGUF: what is read, and that a lying file is refused by name, at once and without memory."""

from __future__ import annotations

import struct
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers.files import gguf_bytes, gguf_string, gguf_tensor_info, write_gguf
from zllm.errors import LoadError
from zllm.quant.formats import FORMATS
from zllm.weight import gguf
from zllm.weight.byte_source import BytesSource, FileSource
from zllm.weight.gguf import open_gguf
from zllm.weight.gguf_types import TENSOR_TYPES
from zllm.weight.linear_weight import F32, Quantized

ONE = {"t": ("f32", (4,), np.array([1, 2, 3, 4], "<f4").tobytes())}


def parse(data: bytes) -> gguf.Gguf:
    return open_gguf(BytesSource(data, "m.gguf"))


def header(version: int = 3, tensors: int = 0, keys: int = 0) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, keys)


def one_key(kind: int, payload: bytes, key: str | bytes = "k") -> bytes:
    return header(keys=1) + gguf_string(key) + struct.pack("<I", kind) + payload


def table(*infos: bytes, data: int = 64) -> bytes:
    """A file of these tensor infos, with `data` bytes after the padding."""
    head = header(tensors=len(infos)) + b"".join(infos)
    return head + bytes(-len(head) % 32) + bytes(data)


def test_reads_back_what_was_written(tmp_path: Path) -> None:
    metadata: dict[str, Any] = {
        "general.architecture": "llama",
        "flag": True,
        "count": 7,
        "negative": -3,
        "long": 1 << 40,
        "ratio": 0.5,
        "words": ["a", "", "ü"],
        "signed": [1, -1],
        "empty": [],
    }
    blocks = bytes(range(36))
    path = write_gguf(tmp_path / "m.gguf", metadata, {**ONE, "w": ("q4_0", (2, 32), blocks)})

    got = open_gguf(FileSource(path))

    assert got.metadata == metadata
    assert got.version == 3
    t, w = got.tensors["t"], got.tensors["w"]
    assert isinstance(t, F32) and t.shape == (4,)
    assert isinstance(w, Quantized) and w.shape == (2, 32) and w.format == "q4_0"
    assert bytes(w.data.read()) == blocks
    assert bytes(w.data.read(18, 2)) == blocks[18:20]


def test_version_2_and_own_alignment() -> None:
    data = gguf_bytes({"general.alignment": 8}, {**ONE, "u": ONE["t"]}, version=2)
    got = parse(data)
    assert got.version == 2
    assert bytes(got.tensors["u"].data.read()) == ONE["t"][2]


def test_all_scalar_types() -> None:
    codes = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q"}
    for kind, code in {**codes, 12: "d"}.items():
        (value,) = parse(one_key(kind, struct.pack(f"<{code}", 1))).metadata.values()
        assert value == 1 and type(value) is {"f": float, "d": float, "?": bool}.get(code, int)


def test_nested_arrays() -> None:
    inner = struct.pack("<IQ3B", 0, 3, 1, 2, 3)
    data = one_key(9, struct.pack("<IQ", 9, 2) + inner + inner)
    assert parse(data).metadata == {"k": [[1, 2, 3], [1, 2, 3]]}


def test_small_windows_read_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    metadata = {"words": [f"word {i}" for i in range(200)], "text": "x" * 300}
    data = gguf_bytes(metadata, ONE)
    for size in range(1, 70):
        monkeypatch.setattr(gguf, "WINDOW_BYTES", size)
        assert parse(data).metadata == metadata, size


def test_tensors_without_elements_and_without_dimensions() -> None:
    got = parse(
        gguf_bytes({}, {"none": ("q8_0", (3, 0), b""), "scalar": ("f32", (), bytes(4)), **ONE})
    )
    assert {name: weight.shape for name, weight in got.tensors.items()} == {
        "none": (3, 0),
        "scalar": (),
        "t": (4,),
    }
    assert got.tensors["none"].data.size_bytes == 0


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("truncated", "tensor 't'"),
        ("offset_past_end", "tensor 't'"),
        ("offset_wraps", "tensor 't'"),
        ("count_wraps", "tensor 't'"),
        ("huge_kv_count", "metadata_kv_count"),
        ("huge_string", "metadata"),
    ],
)
def test_case_a01(data_dir: Path, name: str, field: str) -> None:
    folder = data_dir / "cases" / "gguf"
    tracemalloc.start()
    start = time.process_time()
    try:
        with pytest.raises(LoadError, match=field) as caught:
            open_gguf(FileSource(folder / f"{name}.gguf"))
        assert time.process_time() - start < 1
        assert tracemalloc.get_traced_memory()[1] < 50_000_000
    finally:
        tracemalloc.stop()
    assert f"{name}.gguf" in str(caught.value)

    ok = open_gguf(FileSource(folder / "ok.gguf")).tensors["t"]
    np.testing.assert_array_equal(np.frombuffer(ok.data.read(), "<f4"), [1, 2, 3, 4])


T = gguf_tensor_info("t", (4,), 0, 0)
DEEP = b"".join(struct.pack("<IQ", 9, 1) for _ in range(9))
HOSTILE = {
    "empty": (b"", "magic: needs 4 bytes"),
    "other-file": (b"PK\3\4" + bytes(40), "not a GGUF file"),
    "version-1": (header(version=1), "version: found 1, supported are 2 and 3"),
    "version-4": (header(version=4), "version: found 4"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big endian"),
    "tensor-count": (header(tensors=1 << 62), "tensor_count"),
    "tensor-count-does-not-fit": (header(tensors=100) + bytes(99), "tensor_count: 100 tensors"),
    "key-length": (header(keys=1) + struct.pack("<Q", 1 << 40) + bytes(9), "key 0: a string of"),
    "key-cut": (header(keys=1) + struct.pack("<Q", 99) + bytes(9), "key 0: needs 99 bytes"),
    "key-utf8": (one_key(0, b"\1", b"\xff"), "not valid UTF-8"),
    "value-type": (one_key(13, bytes(8)), "metadata 'k': unknown value type 13"),
    "bool": (one_key(7, b"\2"), "neither 0 nor 1"),
    "string-length": (one_key(8, struct.pack("<Q", 1 << 63)), "metadata 'k': a string of"),
    "array-count": (
        one_key(9, struct.pack("<IQ", 0, 1 << 62)),
        "metadata 'k': 4611686018427387904",
    ),
    "array-does-not-fit": (one_key(9, struct.pack("<IQ", 5, 3) + bytes(8)), "cannot fit in the 8"),
    "array-string-length": (
        one_key(9, struct.pack("<IQ", 8, 2) + gguf_string("a") + struct.pack("<Q", 1 << 63)),
        "metadata 'k': a string of",
    ),
    "array-string-cut": (
        one_key(9, struct.pack("<IQ", 8, 2) + gguf_string("a") + struct.pack("<Q", 7) + b"b"),
        "metadata 'k': needs 7 bytes",
    ),
    "array-string-utf8": (
        one_key(9, struct.pack("<IQ", 8, 2) + gguf_string("a") + gguf_string(b"\xff")),
        "metadata 'k': a string is not valid UTF-8",
    ),
    "array-type": (one_key(9, struct.pack("<IQ", 77, 0)), "unknown value type 77"),
    "array-depth": (one_key(9, DEEP), "nested deeper"),
    "twice-a-key": (
        header(keys=2) + (gguf_string("k") + bytes(4) + b"\1") * 2,
        "'k' appears twice",
    ),
    "twice-a-tensor": (table(T, gguf_tensor_info("t", (4,), 0, 32)), "'t': the name appears twice"),
    "overlap": (table(T, gguf_tensor_info("u", (9,), 0, 0)), "overlaps tensor"),
    "overlap-partly": (
        table(gguf_tensor_info("u", (9,), 0, 0), gguf_tensor_info("t", (4,), 0, 32)),
        "tensor 't': data at offset 32 overlaps tensor 'u'",
    ),
    "misaligned": (table(gguf_tensor_info("t", (4,), 0, 16)), "offset 16 is no multiple"),
    "type-unknown": (table(gguf_tensor_info("t", (4,), 99, 0)), "'t': unknown tensor type 99"),
    "type-removed": (table(gguf_tensor_info("t", (32,), 31, 0)), "unknown tensor type 31"),
    "dims": (table(gguf_tensor_info("t", (1, 1, 1, 1, 1), 0, 0)), "5 dimensions, at most 4"),
    "dims-count": (header(tensors=1) + gguf_string("t") + b"\xff" * 99, "4294967295 dimensions"),
    "dims-overflow": (
        table(gguf_tensor_info("t", (1 << 32, 1 << 32, 1 << 32, 1 << 32), 0, 0)),
        "tensor 't': needs 1361129467683753853853498429727072845824 bytes",
    ),
    "columns": (table(gguf_tensor_info("t", (2, 33), 2, 0)), "rows of 33 elements, q4_0 needs"),
    "cut-off": (table(T, data=15), "needs 16 bytes at data offset 0, the file has 15"),
    "no-data-at-all": ((header(tensors=1) + T), "the file has 0 bytes of data"),
    "alignment-zero": (gguf_bytes({"general.alignment": 0}, {}), "alignment: found 0"),
    "alignment-odd": (gguf_bytes({"general.alignment": 12}, {}), "alignment: found 12"),
    "alignment-text": (one_key(8, gguf_string("8"), "general.alignment"), "alignment: found '8'"),
}


@pytest.mark.parametrize(("data", "message"), HOSTILE.values(), ids=HOSTILE)
def test_hostile_file(data: bytes, message: str) -> None:
    with pytest.raises(LoadError, match=message) as caught:
        parse(data)
    assert str(caught.value).startswith("m.gguf: ")


def test_every_truncation_is_an_error() -> None:
    whole = gguf_bytes({"words": ["a", "b"], "n": 1}, ONE)
    parse(whole)
    # The last 16 bytes are padding after the tensor, which may be absent.
    for size in range(len(whole) - 16):
        with pytest.raises(LoadError):
            parse(whole[:size])


def test_total_of_array_elements_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf, "MAX_ARRAY_ELEMENTS", 5)
    parse(gguf_bytes({"a": [1, 2, 3], "b": [4, 5]}, {}))
    with pytest.raises(LoadError, match="metadata 'b': 3 array elements, at most 2"):
        parse(gguf_bytes({"a": [1, 2, 3], "b": [4, 5, 6]}, {}))


def test_block_sizes_are_those_of_the_codecs() -> None:
    both = [kind for kind in TENSOR_TYPES.values() if kind.name in FORMATS]
    assert {"f32", "q4_1", "q6_k"} <= {kind.name for kind in both}
    for kind in both:
        codec = FORMATS[kind.name]
        assert (kind.block_elements, kind.block_bytes) == (codec.block_elements, codec.block_bytes)


def test_types_without_codec_are_listed() -> None:
    got = parse(gguf_bytes({}, {"t": ("q5_k", (1, 256), bytes(176))})).tensors["t"]
    assert isinstance(got, Quantized) and got.format == "q5_k" and got.data.size_bytes == 176
