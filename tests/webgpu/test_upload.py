"""Weights arrive on the device byte for byte: joined, chunked, padded, split, repacked."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numpy.typing import NDArray

from zllm.backend.webgpu import upload
from zllm.backend.webgpu.device import DeviceInfo, Dispatch, Kernel
from zllm.backend.webgpu.lowering import Bank, ResidentForm
from zllm.errors import BackendError
from zllm.quant import formats
from zllm.weight.byte_source import BytesSource, TensorBytes
from zllm.weight.linear_weight import LinearWeight, RepeatedRows, stored

if TYPE_CHECKING:
    from zllm.backend.webgpu.wgpu_device import WgpuDevice

pytestmark = pytest.mark.vulkan

U8 = NDArray[np.uint8]


def plain(format: str, columns: int, info: DeviceInfo) -> ResidentForm:
    return ResidentForm(format, -(-formats.row_bytes(format, columns) // 4))


INVERT = Kernel(
    "invert",
    "@group(0) @binding(0) var<storage, read> x: array<u32>;\n"
    "@group(0) @binding(1) var<storage, read_write> y: array<u32>;\n"
    "@compute @workgroup_size(1) fn main(@builtin(workgroup_id) id: vec3u) {"
    " y[id.x] = ~x[id.x]; }",
    ("read", "write"),
)


def inverting(format: str, columns: int, info: DeviceInfo) -> ResidentForm:
    def repack(raw: Bank, bank: Bank) -> list[Dispatch]:
        assert raw.format == format and raw.rows == bank.rows
        return [Dispatch(INVERT, (raw.buffer, bank.buffer), (raw.rows * raw.row_words, 1, 1))]

    return ResidentForm("inverted", plain(format, columns, info).row_words, repack)


@pytest.fixture
def as_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upload, "resident", plain)


def part(format: str, rows: int, columns: int, seed: int = 0) -> tuple[LinearWeight, U8]:
    """A weight of random bytes and those bytes [rows, row bytes], inside a larger source."""
    row_bytes = formats.row_bytes(format, columns)
    data = np.random.default_rng(seed).integers(0, 256, (rows, row_bytes), np.uint8)
    source = BytesSource(b"before" + data.tobytes() + b"after")
    return stored(format, (rows, columns), TensorBytes(source, 6, data.nbytes)), data


def resident_rows(device: WgpuDevice, bank: Bank) -> U8:
    held = device.read(bank.buffer, 0, 4 * bank.rows * bank.row_words)
    return np.frombuffer(held, np.uint8).reshape(bank.rows, 4 * bank.row_words)


@pytest.mark.usefixtures("as_stored")
@pytest.mark.parametrize(
    ("format", "columns"), [("f32", 7), ("f16", 7), ("q4_1", 64), ("q8_0", 32), ("q6_k", 256)]
)
def test_rows_are_padded_to_words(device: WgpuDevice, format: str, columns: int) -> None:
    weight, data = part(format, 5, columns)
    (bank,) = upload.upload_matrix(device, "w", [weight])
    rows = resident_rows(device, bank)
    np.testing.assert_array_equal(rows[:, : data.shape[1]], data)
    assert not rows[:, data.shape[1] :].any()
    assert rows.shape[1] - data.shape[1] < 4


@pytest.mark.usefixtures("as_stored")
@pytest.mark.parametrize("format", ["q4_1", "q8_0"], ids=["whole words", "padded"])
def test_chunks_meet_without_a_seam(
    device: WgpuDevice, monkeypatch: pytest.MonkeyPatch, format: str
) -> None:
    monkeypatch.setattr(upload, "CHUNK_BYTES", 100)
    parts, data = zip(*(part(format, rows, 32, rows) for rows in (7, 1, 12)), strict=True)
    (bank,) = upload.upload_matrix(device, "w", parts)
    rows = resident_rows(device, bank)[:, : data[0].shape[1]]
    np.testing.assert_array_equal(rows, np.concatenate(data))


@pytest.mark.usefixtures("as_stored")
def test_formats_lie_in_banks_of_their_own(device: WgpuDevice) -> None:
    wanted = [("f16", 3), ("f16", 2), ("q8_0", 4), ("f16", 1)]
    parts, data = zip(*(part(f, rows, 32, rows) for f, rows in wanted), strict=True)
    banks = upload.upload_matrix(device, "w", parts)
    assert [(b.format, b.first_row, b.rows) for b in banks] == [
        ("f16", 0, 5),
        ("q8_0", 5, 4),
        ("f16", 9, 1),
    ]
    np.testing.assert_array_equal(resident_rows(device, banks[0]), np.concatenate(data[:2]))
    np.testing.assert_array_equal(resident_rows(device, banks[2]), data[3])


@pytest.mark.usefixtures("as_stored")
def test_a_weight_beyond_the_binding_limit_is_split(
    device: WgpuDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "info", replace(device.info, max_binding_bytes=600))
    parts, data = zip(*(part("f16", rows, 32, rows) for rows in (4, 10, 9)), strict=True)
    banks = upload.upload_matrix(device, "w", parts)
    assert [(b.first_row, b.rows) for b in banks] == [(0, 9), (9, 9), (18, 5)]
    assert all(bank.buffer.size_bytes <= 600 for bank in banks)
    rows = np.concatenate([resident_rows(device, bank) for bank in banks])
    np.testing.assert_array_equal(rows, np.concatenate(data))


@pytest.mark.usefixtures("as_stored")
def test_a_row_beyond_the_binding_limit_is_refused(
    device: WgpuDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "info", replace(device.info, max_binding_bytes=60))
    with pytest.raises(BackendError, match="w: one row of 64 bytes"):
        upload.upload_matrix(device, "w", [part("f16", 2, 32)[0]])


def test_repacked_banks_leave_no_raw_copy(
    device: WgpuDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upload, "resident", inverting)
    weight, data = part("q4_1", 6, 32)
    held = device.held_bytes
    (bank,) = upload.upload_matrix(device, "w", [weight])
    assert bank.format == "inverted"
    np.testing.assert_array_equal(resident_rows(device, bank), ~data)
    readback = 16
    assert device.held_bytes <= held + bank.buffer.size_bytes + readback


@pytest.mark.parametrize("format", ["f32", "f16", "bf16"])
def test_vectors_become_one_f32_row(device: WgpuDevice, format: str) -> None:
    values = np.array([1.5, -2.0, 0.25, 3.0, -0.125], np.float32)
    raw = {
        "f32": values,
        "f16": values.astype(np.float16),
        "bf16": (values.view(np.uint32) >> 16).astype(np.uint16),
    }[format]

    def vector(piece: NDArray[np.generic]) -> LinearWeight:
        data = piece.tobytes()
        return stored(format, piece.shape, TensorBytes(BytesSource(data), 0, len(data)))

    bank = upload.upload_f32(device, "v", [vector(raw[:2]), vector(raw[2:])])
    assert (bank.format, bank.rows, bank.columns, bank.row_words) == ("f32", 1, 5, 5)
    np.testing.assert_array_equal(resident_rows(device, bank).view(np.float32)[0], values)


def test_tables_become_one_f32_bank(device: WgpuDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upload, "CHUNK_BYTES", 64)
    table = np.random.default_rng(1).standard_normal((33, 6)).astype(np.float16)
    data = TensorBytes(BytesSource(table.tobytes()), 0, table.nbytes)
    bank = upload.upload_f32(device, "table", [stored("f16", table.shape, data)])
    assert (bank.rows, bank.columns) == table.shape
    rows = resident_rows(device, bank).view(np.float32)
    np.testing.assert_array_equal(rows, table.astype(np.float32))


def test_a_table_beyond_the_binding_limit_names_the_flag(
    device: WgpuDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "info", replace(device.info, max_binding_bytes=1 << 20))
    weight, _ = part("f32", 1 << 10, 512)
    with pytest.raises(BackendError, match=r"table takes 2 MiB.*--context"):
        upload.upload_f32(device, "table", [weight])


def repeated(shifts: tuple[int, ...], rows: int, columns: int) -> list[LinearWeight]:
    """q8_0 weights of `rows` rows that repeat the same 6, each from another one on."""
    tile = part("q8_0", 6, columns)[1].tobytes()
    row_bytes = formats.row_bytes("q8_0", columns)
    return [
        stored("q8_0", (rows, columns), RepeatedRows(tile, at * row_bytes, rows * row_bytes))
        for at in shifts
    ]


def as_written(weight: LinearWeight) -> TensorBytes:
    """The same bytes, as a file would hold them."""
    data = bytes(weight.data.read())
    return TensorBytes(BytesSource(data), 0, len(data))


@pytest.mark.parametrize("limit", [1 << 20, 2000], ids=["one bank", "banks"])
def test_repeated_rows_are_copied_to_where_they_would_be_written(
    device: WgpuDevice, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    monkeypatch.setattr(device, "info", replace(device.info, max_binding_bytes=limit))
    weights = repeated((0, 5, 2), 31, 64)
    written = [stored("q8_0", w.shape, as_written(w)) for w in weights]
    expected = upload.upload_matrix(device, "written", written)
    uploads: list[int] = []
    write = device.write

    def counted(buffer: Any, at: int, data: memoryview) -> None:
        uploads.append(data.nbytes)
        write(buffer, at, data)

    monkeypatch.setattr(device, "write", counted)
    held = device.held_bytes
    banks = upload.upload_matrix(device, "repeated", weights)
    assert (len(banks) > 1) == (limit == 2000)
    for ours, theirs in zip(banks, expected, strict=True):
        assert replace(ours, buffer=theirs.buffer) == theirs
        np.testing.assert_array_equal(resident_rows(device, ours), resident_rows(device, theirs))
    # One tile for each bank, its rows padded to words; nothing else stays.
    assert sum(uploads) == len(banks) * 6 * 68
    assert device.held_bytes - held - sum(bank.buffer.size_bytes for bank in banks) <= 16


def test_rows_of_different_tiles_are_written(device: WgpuDevice) -> None:
    weights = [*repeated((1,), 9, 64), part("q8_0", 9, 64)[0]]
    (bank,) = upload.upload_matrix(device, "w", weights)
    alike = [stored("q8_0", w.shape, as_written(w)) for w in weights]
    (expected,) = upload.upload_matrix(device, "w", alike)
    np.testing.assert_array_equal(resident_rows(device, bank), resident_rows(device, expected))
