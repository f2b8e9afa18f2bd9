"""Byte sources in memory and on disk: ranges, refusals, and views that outlive their source."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from zllm.errors import LoadError
from zllm.weight import byte_source
from zllm.weight.byte_source import ByteSource, BytesSource, FileSource, RefusedBytes, TensorBytes

DATA = bytes(range(100))
MAKERS: dict[str, Callable[[Path], ByteSource]] = {
    "bytes": lambda path: BytesSource(path.read_bytes()),
    "mapped": FileSource,
    "read": lambda path: FileSource(path, use_mmap=False),
}


@pytest.fixture(params=MAKERS.values(), ids=list(MAKERS))
def source(request: pytest.FixtureRequest, tmp_path: Path) -> ByteSource:
    (tmp_path / "data").write_bytes(DATA)
    made: ByteSource = request.param(tmp_path / "data")
    return made


def test_ranges(source: ByteSource) -> None:
    assert source.size_bytes == 100
    assert bytes(source.read(10, 5)) == DATA[10:15]
    assert bytes(source.read(0, 100)) == DATA
    assert bytes(source.read(100, 0)) == b""


@pytest.mark.parametrize(("offset", "size"), [(96, 5), (101, 0), (-1, 1), (0, -1), (1 << 64, 1)])
def test_ranges_outside(source: ByteSource, offset: int, size: int) -> None:
    with pytest.raises(LoadError, match="there are 100"):
        source.read(offset, size)


def test_views_outlive_the_source(source: ByteSource) -> None:
    array = np.frombuffer(source.read(10, 4), np.uint8)
    source.close()
    assert array.tolist() == [10, 11, 12, 13]


def test_mapped_views_are_not_copies(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(DATA)
    source = FileSource(tmp_path / "data")
    assert np.shares_memory(
        np.frombuffer(source.read(0, 100), np.uint8), np.frombuffer(source.read(50, 1), np.uint8)
    )


def test_empty_file(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    source = FileSource(tmp_path / "empty")
    assert source.size_bytes == 0 and bytes(source.read(0, 0)) == b""


def test_what_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="No such file"):
        FileSource(tmp_path / "absent")
    with pytest.raises(LoadError, match="not a regular file"):
        FileSource(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(LoadError, match="not a regular file"):
        FileSource(tmp_path / "pipe")


def test_file_that_shrinks_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(DATA)
    source = FileSource(path, use_mmap=False)
    os.truncate(path, 50)
    with pytest.raises(LoadError, match="20 bytes expected at 40, got 10"):
        source.read(40, 20)


def test_offsets_beyond_what_seek_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a page, whose Python seeks by 31 bits; here by less than 16."""
    path = tmp_path / "data"
    path.write_bytes(DATA)
    source = FileSource(path, use_mmap=False)
    monkeypatch.setattr(byte_source, "MOST_SEEK", 15)

    class Near(io.BufferedReader):
        def seek(self, offset: int, whence: int = 0, /) -> int:
            if offset > 15:
                raise OverflowError("Python int too large to convert to C long")
            return super().seek(offset, whence)

    source._file.close()
    source._file = Near(io.FileIO(path))
    for offset, size in ((3, 9), (14, 40), (16, 1), (45, 55), (99, 1), (2, 30), (100, 0)):
        assert bytes(source.read(offset, size)) == DATA[offset : offset + size]
    os.truncate(path, 50)
    with pytest.raises(LoadError, match="20 bytes expected at 40, got 10"):
        source.read(40, 20)
    source.close()


def test_tensor_bytes_stay_in_their_window() -> None:
    window = TensorBytes(BytesSource(DATA), 10, 20)
    assert bytes(window.read()) == DATA[10:30]
    assert bytes(window.read(5)) == DATA[15:30]
    assert bytes(window.read(5, 2)) == DATA[15:17]
    for offset, size in ((0, 21), (20, 1), (-1, 2), (21, None)):
        with pytest.raises(ValueError, match="leaves a tensor of 20 bytes"):
            window.read(offset, size)


def test_refused_bytes() -> None:
    with pytest.raises(LoadError, match="no such codec"):
        RefusedBytes(3, "no such codec").read()
