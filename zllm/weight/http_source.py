"""A file on a web server, read by range requests (RFC 9110, section 14)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from zllm.errors import LoadError
from zllm.weight.byte_source import check_range

if TYPE_CHECKING:
    from http.client import HTTPResponse

_CONTENT_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19})")  # RFC 9110, section 14.4


class HttpSource:
    """Byte ranges of one URL. LoadError if the server sends none or the file changes meanwhile.

    A request that fails on the way or with a 5xx status is repeated once.
    """

    def __init__(self, url: str, /, *, timeout_seconds: float = 30.0) -> None:
        if not url.startswith(("http://", "https://")):
            raise LoadError(f"{url}: expected an http:// or https:// address")
        self.name = url
        self._timeout_seconds = timeout_seconds
        self.size_bytes = 0
        self._tag: str | None = None
        self._fetch(0, 1)

    def read(self, offset: int, size: int, /) -> memoryview:
        check_range(self, offset, size)
        return memoryview(self._fetch(offset, size) if size else b"")

    def close(self) -> None:
        pass

    def _fetch(self, offset: int, size: int) -> bytes:
        try:
            return self._request(offset, size)
        except (OSError, EOFError) as error:
            if not _may_pass(error):
                raise self._error(error) from None
        try:
            return self._request(offset, size)
        except (OSError, EOFError) as error:
            raise self._error(error) from None

    def _request(self, offset: int, size: int) -> bytes:
        # Not at the top: it needs sockets, which the browser lacks.
        from http.client import HTTPException
        from urllib.request import Request, urlopen

        span = f"bytes={offset}-{offset + size - 1}"
        headers = {"Range": span, "Accept-Encoding": "identity"}
        try:
            with urlopen(
                Request(self.name, headers=headers), timeout=self._timeout_seconds
            ) as response:
                self._check(response, offset, size)
                data: bytes = response.read(size)
        except HTTPException as error:
            raise EOFError(f"broken answer: {error!r}") from None
        if len(data) != size:
            raise EOFError(f"the answer ended after {len(data)} of {size} bytes")
        return data

    def _check(self, response: HTTPResponse, offset: int, size: int) -> None:
        """Refuse an answer that is not the very range that was asked for."""
        if response.status != 206:
            raise LoadError(
                f"{self.name}: status {response.status} to a range request, expected 206; the"
                " server must support byte ranges"
            )
        found = response.headers.get("Content-Range", "")
        match = _CONTENT_RANGE.fullmatch(found)
        if match is None or (int(match[1]), int(match[2])) != (offset, offset + size - 1):
            raise LoadError(
                f"{self.name}: Content-Range {found!r}, expected bytes {offset}-{offset + size - 1}"
            )
        seen = (int(match[3]), response.headers.get("ETag"))
        if self.size_bytes and seen != (self.size_bytes, self._tag):
            raise LoadError(f"{self.name}: the file changed while it was read; open it again")
        self.size_bytes, self._tag = seen

    def _error(self, error: Exception) -> LoadError:
        return LoadError(f"{self.name}: cannot be read: {error}")


def _may_pass(error: Exception) -> bool:
    """Whether asking again can help: not after a 4xx status (HTTPError is an OSError)."""
    code = getattr(error, "code", None)
    return code is None or code >= 500
