"""Weights from their source to the device, in chunks: no weight is ever one Python object."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np

from zllm.backend.webgpu.device import Device
from zllm.backend.webgpu.host_rows import host_rows, resident_format
from zllm.backend.webgpu.launch import resident
from zllm.backend.webgpu.lowering import Bank, ResidentForm
from zllm.errors import BackendError
from zllm.quant import formats
from zllm.quant.weights import decode_rows, row_count
from zllm.weight.linear_weight import LinearWeight, RepeatedRows

CHUNK_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive rows of one part."""

    part: LinearWeight
    first_row: int
    rows: int


def upload_matrix(
    device: Device,
    name: str,
    parts: Sequence[LinearWeight],
    together: int = 1,
    most: int | None = None,
) -> tuple[Bank, ...]:
    """[N, D] parts of any formats, rows joined, as the banks that the kernels read.

    Banks are cut at multiples of `together` rows, and where the format changes. most: rows of a
    bank, where fewer are wanted than fit.
    """
    columns = parts[0].shape[1]
    banks: list[Bank] = []
    first_row = 0
    for wanted, run in groupby(parts, resident_format):
        form = resident(wanted, columns, device.info)
        fit = _rows_per_bank(device, name, wanted, form, columns)
        each = min(fit, most or fit) // together * together
        if not each:
            raise BackendError(
                f"{name}: {together} rows of one expert are more than {device.info.name} binds, "
                f"{device.info.max_binding_bytes / 2**20:.0f} MiB; use --backend oracle"
            )
        for runs in _split(list(run), each):
            rows = sum(r.rows for r in runs)
            bank = _bank(device, name, form.format, first_row, rows, columns, form.row_words)
            _fill(device, bank, wanted, form, runs)
            banks.append(bank)
            first_row += rows
    return tuple(banks)


def upload_f32(device: Device, name: str, parts: Sequence[LinearWeight]) -> Bank:
    """Vectors [N] joined into one row, or one matrix as it is; decoded to f32."""
    flat = len(parts[0].shape) == 1
    columns = sum(p.shape[0] for p in parts) if flat else parts[0].shape[1]
    rows = 1 if flat else sum(p.shape[0] for p in parts)
    if rows * columns * 4 > device.info.max_binding_bytes:
        raise BackendError(
            f"{name} takes {rows * columns * 4 / 2**20:.0f} MiB, and {device.info.name} binds "
            f"at most {device.info.max_binding_bytes / 2**20:.0f} MiB; lower --context"
        )
    bank = _bank(device, name, "f32", 0, rows, columns, columns)
    at = 0
    for part in parts:
        for first, count in _chunks(row_count(part.shape), 4 * part.shape[-1]):
            values = decode_rows(part, first, count)
            device.write(bank.buffer, at, values.data.cast("B"))
            at += values.nbytes
    return bank


def _rows_per_bank(device: Device, name: str, wanted: str, form: ResidentForm, columns: int) -> int:
    words = form.row_words
    if form.repack is not None:
        words = max(words, _raw_words(wanted, columns))
    rows = device.info.max_binding_bytes // (4 * words)
    if not rows:
        raise BackendError(f"{name}: one row of {4 * words} bytes exceeds the binding limit")
    return rows


def _split(parts: Sequence[LinearWeight], rows_per_bank: int) -> Iterator[list[Run]]:
    """Runs of the joined rows, bank by bank."""
    runs: list[Run] = []
    room = rows_per_bank
    for part in parts:
        first = 0
        while first < part.shape[0]:
            rows = min(room, part.shape[0] - first)
            runs.append(Run(part, first, rows))
            first += rows
            room -= rows
            if not room:
                yield runs
                runs, room = [], rows_per_bank
    if runs:
        yield runs


def _bank(
    device: Device, name: str, format: str, first_row: int, rows: int, columns: int, row_words: int
) -> Bank:
    buffer = device.buffer(4 * rows * row_words, name)
    return Bank(buffer, format, first_row, rows, columns, row_words)


def _fill(device: Device, bank: Bank, wanted: str, form: ResidentForm, runs: Sequence[Run]) -> None:
    tile = _tile(runs)
    if tile is not None and tile.rows < bank.rows:
        _repeat(device, bank, wanted, form, runs, tile)
        return
    if form.repack is None:
        _write_rows(device, bank, runs)
        return
    words = _raw_words(wanted, bank.columns)
    raw = _bank(device, f"{bank.buffer.label} raw", wanted, 0, bank.rows, bank.columns, words)
    _write_rows(device, raw, runs)
    device.program(form.repack(raw, bank)).submit(memoryview(b""))
    device.destroy(raw.buffer)


def _tile(runs: Sequence[Run]) -> Run | None:
    """The few rows that all runs repeat, once; None for weights of a file."""
    data = runs[0].part.data
    if not isinstance(data, RepeatedRows):
        return None
    for run in runs:
        if not isinstance(run.part.data, RepeatedRows) or run.part.data.tile is not data.tile:
            return None
    part, size = runs[0].part, len(data.tile)
    rows = size // _row_bytes(part)
    whole = replace(part, shape=(rows, part.shape[1]), data=RepeatedRows(data.tile, 0, size))
    return Run(whole, 0, rows)


def _repeat(
    device: Device, bank: Bank, wanted: str, form: ResidentForm, runs: Sequence[Run], tile: Run
) -> None:
    """Bring the tile to its resident form once; every row of the bank is then a copy of its own."""
    label = f"{bank.buffer.label} tile"
    source = _bank(device, label, bank.format, 0, tile.rows, bank.columns, bank.row_words)
    _fill(device, source, wanted, form, [tile])
    row_bytes, target = 4 * bank.row_words, 0
    copies = []
    for run in runs:
        assert isinstance(run.part.data, RepeatedRows)
        at = run.part.data.first_byte // _row_bytes(run.part) + run.first_row
        left = run.rows
        while left:
            first = at % tile.rows
            count = min(left, tile.rows - first)
            copies.append(
                (source.buffer, first * row_bytes, bank.buffer, target, count * row_bytes)
            )
            target += count * row_bytes
            at += count
            left -= count
    device.copy(copies)
    device.destroy(source.buffer)


def _row_bytes(part: LinearWeight) -> int:
    return formats.row_bytes(part.format, part.shape[1])


def _raw_words(stored: str, columns: int) -> int:
    return -(-formats.row_bytes(stored, columns) // 4)


def _write_rows(device: Device, bank: Bank, runs: Sequence[Run]) -> None:
    """The rows as stored, each padded to whole words, or else as coded on the host."""
    at = 0
    for run in runs:
        if not _streamed(device, bank, at, run):
            for first, count in _chunks(run.rows, 4 * bank.row_words):
                rows = _rows(run.part, run.first_row + first, count, bank)
                device.write(bank.buffer, at + 4 * first * bank.row_words, rows)
        at += 4 * run.rows * bank.row_words


def _streamed(device: Device, bank: Bank, at: int, run: Run) -> bool:
    """Whether the driver read the rows from their file by itself, as that of a page does."""
    stream: Any = getattr(device, "stream", None)
    place = getattr(run.part.data, "place", None)
    if stream is None or place is None or run.part.format != bank.format:
        return False
    file, start = place
    row_bytes = formats.row_bytes(run.part.format, bank.columns)
    first = start + run.first_row * row_bytes
    return bool(stream(bank.buffer, at, file, first, run.rows, row_bytes, 4 * bank.row_words))


def _rows(part: LinearWeight, first: int, count: int, bank: Bank) -> memoryview:
    if part.format == bank.format:
        row_bytes = formats.row_bytes(part.format, bank.columns)
        raw = part.data.read(first * row_bytes, count * row_bytes)
    else:
        coded = host_rows(part, first, count)
        row_bytes, raw = coded.shape[1], coded.data.cast("B")
    padded = 4 * bank.row_words
    return raw if padded == row_bytes else _pad_rows(raw, row_bytes, padded)


def _chunks(rows: int, row_bytes: int) -> Iterator[tuple[int, int]]:
    """(first row, rows) of at most CHUNK_BYTES each."""
    step = max(1, CHUNK_BYTES // row_bytes)
    for first in range(0, rows, step):
        yield first, min(step, rows - first)


def _pad_rows(raw: memoryview, row_bytes: int, padded: int) -> memoryview:
    rows = np.frombuffer(raw, np.uint8).reshape(-1, row_bytes)
    out = np.zeros((len(rows), padded), np.uint8)
    out[:, :row_bytes] = rows
    return out.data.cast("B")
