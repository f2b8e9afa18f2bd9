"""Where bytes come from. Readers see ranges of a `ByteSource` and may assume no path."""

from __future__ import annotations

import io
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from zllm.errors import LoadError

if TYPE_CHECKING:
    import mmap


MOST_SEEK = (1 << 31) - 1


class ByteSource(Protocol):
    """A fixed number of bytes that can be read in ranges. `name` is for messages."""

    @property
    def name(self) -> str: ...

    @property
    def size_bytes(self) -> int: ...

    def read(self, offset: int, size: int, /) -> memoryview:
        """Exactly `size` bytes from `offset`, a view where that is free. LoadError outside."""
        ...

    def close(self) -> None:
        """Release the source. Views already handed out stay valid."""
        ...


def check_range(source: ByteSource, offset: int, size: int) -> None:
    """LoadError unless [offset, offset + size) lies in the source."""
    if offset < 0 or size < 0 or offset + size > source.size_bytes:
        raise LoadError(
            f"{source.name}: bytes {offset}..{offset + size} wanted, there are {source.size_bytes}"
        )


@dataclass(frozen=True, slots=True)
class BytesSource:
    """Bytes in memory."""

    data: bytes | bytearray | memoryview
    name: str = "<bytes>"

    @property
    def size_bytes(self) -> int:
        return len(self.data)

    def read(self, offset: int, size: int, /) -> memoryview:
        check_range(self, offset, size)
        return memoryview(self.data)[offset : offset + size]

    def close(self) -> None:
        pass


class FileSource:
    """A regular file, mapped where the platform can map, else read range by range.

    LoadError if `path` is missing, unreadable or no regular file.
    """

    def __init__(self, path: str | Path, /, *, use_mmap: bool = True) -> None:
        self.name = str(path)
        try:
            # A named pipe would block in open(), so the kind is asked first.
            if not stat.S_ISREG(os.stat(path).st_mode):
                raise LoadError(f"{path}: not a regular file")
            self._file = open(path, "rb")  # noqa: SIM115 - lives as long as the source
        except OSError as error:
            raise LoadError(f"{path}: cannot be opened: {error.strerror or error}") from error
        self._far: io.FileIO | None = None
        self.size_bytes = os.fstat(self._file.fileno()).st_size
        self._map: mmap.mmap | None = _map_file(self._file.fileno()) if use_mmap else None
        self._view = memoryview(self._map) if self._map is not None else None

    def read(self, offset: int, size: int, /) -> memoryview:
        check_range(self, offset, size)
        if self._view is not None:
            return self._view[offset : offset + size]
        try:
            self._file.seek(offset)
            data = self._file.read(size)
        except OverflowError:  # in a page, whose Python seeks by 31 bits
            data = self._read_far(offset, size)
        if len(data) != size:
            raise LoadError(f"{self.name}: {size} bytes expected at {offset}, got {len(data)}")
        return memoryview(data)

    def _read_far(self, offset: int, size: int) -> bytes:
        """By steps from where the file begins. Unbuffered: a buffer would have to know where."""
        if self._far is None:
            self._far = open(self.name, "rb", buffering=0)  # noqa: SIM115 - lives as long as this
        self._far.seek(0)
        for _ in range(offset // MOST_SEEK):
            self._far.seek(MOST_SEEK, os.SEEK_CUR)
        self._far.seek(offset % MOST_SEEK, os.SEEK_CUR)
        data = bytearray()
        while len(data) < size and (more := self._far.read(size - len(data))):
            data += more
        return bytes(data)

    def close(self) -> None:
        self._file.close()
        if self._far is not None:
            self._far.close()
        if self._view is not None:
            self._view.release()
        # Arrays may still look into the map; it then lives until the last of them is gone.
        self._view = self._map = None


def _map_file(descriptor: int) -> mmap.mmap | None:
    try:
        import mmap

        return mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
    except (ImportError, OSError, ValueError):  # no mmap here, or an empty file
        return None


@dataclass(frozen=True, slots=True)
class TensorBytes:
    """A window of a source: the bytes of one tensor (implements `linear_weight.Bytes`)."""

    source: ByteSource = field(repr=False)
    offset: int
    size_bytes: int

    @property
    def place(self) -> tuple[str, int] | None:
        """(file, offset) where the bytes lie in a file, for a device that reads it by itself."""
        return (self.source.name, self.offset) if isinstance(self.source, FileSource) else None

    def read(self, offset_bytes: int = 0, size_bytes: int | None = None, /) -> memoryview:
        size = self.size_bytes - offset_bytes if size_bytes is None else size_bytes
        if offset_bytes < 0 or size < 0 or offset_bytes + size > self.size_bytes:
            raise ValueError(
                f"range {offset_bytes}+{size} leaves a tensor of {self.size_bytes} bytes"
            )
        return self.source.read(self.offset + offset_bytes, size)


@dataclass(frozen=True, slots=True)
class RefusedBytes:
    """The bytes of a tensor whose type has no codec: it can be listed, not used."""

    size_bytes: int
    reason: str

    def read(self, offset_bytes: int = 0, size_bytes: int | None = None, /) -> memoryview:
        raise LoadError(self.reason)
