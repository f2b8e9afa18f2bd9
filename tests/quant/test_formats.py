"""Codecs against gguf-py's values, bit for bit, and the contract of `decode`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from zllm.quant import formats
from zllm.quant.formats import FORMATS, decode, row_bytes

BLOCK_FORMATS = tuple(name for name, codec in FORMATS.items() if codec.block_elements > 1)
PAIRS = (("bytes", "truth"), ("rand_bytes", "rand_truth"))


def bits(values: NDArray[np.float32]) -> NDArray[np.uint32]:
    """Bit patterns, with every NaN the same."""
    return np.where(np.isnan(values), np.float32(np.nan), values).view(np.uint32)


@pytest.mark.parametrize("pair", PAIRS, ids=["quantised", "random-blocks"])
@pytest.mark.parametrize("format", BLOCK_FORMATS)
def test_block_format_is_bit_exact(data_dir: Path, format: str, pair: tuple[str, str]) -> None:
    golden = np.load(data_dir / "quant" / f"gguf_{format}.npz")
    encoded, truth = golden[pair[0]], golden[pair[1]]

    got = decode(format, encoded, truth.shape[1])

    assert got.shape == truth.shape
    np.testing.assert_array_equal(bits(got), bits(truth))


def test_every_type_of_the_golden_data_has_a_codec(data_dir: Path) -> None:
    stored = {path.stem.removeprefix("gguf_") for path in (data_dir / "quant").glob("gguf_*.npz")}
    assert stored == set(BLOCK_FORMATS) and len(stored) == 26


@pytest.mark.parametrize("format", ["f16", "bf16"])
def test_half_format_is_bit_exact(data_dir: Path, format: str) -> None:
    golden = np.load(data_dir / "quant" / "float16.npz")
    codes = golden["codes"]

    got = decode(format, codes.astype("<u2").tobytes(), len(codes))

    np.testing.assert_array_equal(bits(got[0]), bits(golden[format]))


def test_f32_keeps_every_bit() -> None:
    words = np.array([0, 1, 0x80000000, 0x7F800000, 0x7FC00001, 0x3F800000], "<u4")
    got = decode("f32", words.tobytes(), 3)
    np.testing.assert_array_equal(got.view(np.uint32), words.reshape(2, 3))


@pytest.mark.parametrize("format", FORMATS)
def test_chunks_make_no_difference(format: str, monkeypatch: pytest.MonkeyPatch) -> None:
    columns = 768
    rng = np.random.default_rng(7)
    data = rng.integers(0, 256, (5, row_bytes(format, columns)), dtype=np.uint8)
    whole = decode(format, data, columns)
    monkeypatch.setattr(formats, "CHUNK_ELEMENTS", 512)
    np.testing.assert_array_equal(bits(decode(format, data, columns)), bits(whole))


@pytest.mark.parametrize("format", FORMATS)
def test_unaligned_bytes_decode_alike(format: str) -> None:
    raw = np.random.default_rng(8).integers(0, 256, row_bytes(format, 256), dtype=np.uint8)
    shifted = memoryview(b"\0" + raw.tobytes())[1:]
    np.testing.assert_array_equal(
        bits(decode(format, shifted, 256)), bits(decode(format, raw, 256))
    )


def test_out_is_filled_and_returned() -> None:
    out = np.full(6, -1, np.float32)
    data = np.arange(6, dtype="<f4").tobytes()
    got = decode("f32", data, 3, out)
    assert np.shares_memory(got, out)
    np.testing.assert_array_equal(out, np.arange(6))


def test_no_rows() -> None:
    assert decode("q4_1", b"", 64).shape == (0, 64)
    assert decode("f32", b"", 0).shape == (0, 0)


def test_integers_and_doubles_are_numbers() -> None:
    values = np.array([-3, 0, 7, 1 << 24], np.int64)
    for format in ("i64", "i32", "f64"):
        dtype = format.replace("i", "int").replace("f", "float")
        assert decode(format, values.astype(dtype).tobytes(), 4).tolist() == [[-3, 0, 7, 1 << 24]]
    assert decode("i8", b"\xff\x02", 2).tolist() == [[-1, 2]]
    assert decode("u8", b"\xff\x02", 2).tolist() == [[255, 2]]
    assert decode("u16", b"\xff\x02", 1).tolist() == [[767]]
    assert decode("bool", b"\x01\x00", 2).tolist() == [[1, 0]]


def test_row_bytes() -> None:
    wanted = {"f32": 2048, "bf16": 1024, "f8_e4m3": 512, "i64": 4096, "q4_0": 288, "q6_k": 420}
    wanted |= {"iq1_s": 100, "mxfp4": 272, "nvfp4": 288, "q1_0": 72, "q2_0": 144, "q8_k": 584}
    assert {format: row_bytes(format, 512) for format in wanted} == wanted


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: row_bytes("q4_0", 33), "blocks of 32 elements, got 33"),
        (lambda: row_bytes("q6_k", 128), "blocks of 256 elements, got 128"),
        (lambda: row_bytes("q9_z", 32), "no codec for format 'q9_z'; known: f32"),
        (lambda: decode("q8_0", bytes(33), 32), "34 bytes, got 33"),
        (lambda: decode("f32", bytes(8), 0), "0 bytes, got 8"),
        (lambda: decode("f32", bytes(8), 2, np.empty((1, 3), np.float32)), "float32 of 1 x 2"),
        (lambda: decode("f32", bytes(8), 2, np.empty(2)), "got float64"),  # type: ignore[arg-type]
        (lambda: decode("f32", bytes(8), 1, np.empty((2, 2), np.float32)[:, :1]), "C-contiguous"),
        (lambda: decode("f32", np.zeros(2), 1), "must be uint8"),  # type: ignore[arg-type]
    ],
)
def test_refusals(call, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=message):
        call()
