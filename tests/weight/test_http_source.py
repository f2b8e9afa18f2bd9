"""HttpSource against a real server: ranges, servers that do not keep to them, and one retry."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from zllm.errors import LoadError
from zllm.weight.gguf import open_gguf
from zllm.weight.http_source import HttpSource

DATA = bytes(range(200))


class Handler(BaseHTTPRequestHandler):
    """Serves `server.data` by range; `server.faults` holds what to do wrong, one word a request."""

    def do_GET(self) -> None:
        server: Any = self.server
        fault = server.faults.pop(0) if server.faults else ""
        server.requests.append(self.headers["Range"])
        first, last = (int(n) for n in self.headers["Range"].removeprefix("bytes=").split("-"))
        if fault in ("404", "500"):
            self.send_error(int(fault))
            return
        if fault == "hang-up":
            self.close_connection = True
            return
        if fault == "moved":
            first += 1
            last += 1
        part = server.data[first : last + 1]
        total = len(server.data) + (1 if fault == "grown" else 0)
        self.send_response(200 if fault == "whole" else 206)
        if fault != "no-content-range":
            self.send_header("Content-Range", f"bytes {first}-{last}/{total}")
        self.send_header("ETag", '"2"' if fault == "changed" else '"1"')
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        self.wfile.write(part[:-1] if fault == "short" else part)
        self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Any]:
    made: Any = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.data, made.faults, made.requests = DATA, [], []
    made.url = f"http://127.0.0.1:{made.server_address[1]}/m.gguf"
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


def test_ranges(server: Any) -> None:
    source = HttpSource(server.url)
    assert source.size_bytes == 200
    assert bytes(source.read(10, 5)) == DATA[10:15]
    assert bytes(source.read(199, 1)) == DATA[199:]
    assert bytes(source.read(200, 0)) == b""
    assert server.requests == ["bytes=0-0", "bytes=10-14", "bytes=199-199"]
    with pytest.raises(LoadError, match="there are 200"):
        source.read(199, 2)


def test_gguf_over_http(server: Any, data_dir: Path) -> None:
    server.data = (data_dir / "cases" / "gguf" / "ok.gguf").read_bytes()
    weight = open_gguf(HttpSource(server.url)).tensors["t"]
    assert np.frombuffer(weight.data.read(), "<f4").tolist() == [1, 2, 3, 4]
    assert server.requests[-1] == "bytes=128-143"


@pytest.mark.parametrize("fault", ["500", "hang-up", "short"])
def test_one_failure_is_repeated(server: Any, fault: str) -> None:
    source = HttpSource(server.url)
    server.faults = [fault]
    assert bytes(source.read(10, 5)) == DATA[10:15]
    server.faults = [fault, fault]
    with pytest.raises(LoadError, match=r"m\.gguf: cannot be read: "):
        source.read(10, 5)
    assert server.requests == ["bytes=0-0"] + ["bytes=10-14"] * 4


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("404", "cannot be read: HTTP Error 404"),
        ("whole", "status 200 to a range request, expected 206"),
        ("no-content-range", "Content-Range '', expected bytes 10-14"),
        ("moved", "Content-Range 'bytes 11-15/200', expected bytes 10-14"),
        ("grown", "the file changed"),
        ("changed", "the file changed"),
    ],
)
def test_wrong_answers_are_not_repeated(server: Any, fault: str, message: str) -> None:
    source = HttpSource(server.url)
    server.faults = [fault]
    with pytest.raises(LoadError, match=message):
        source.read(10, 5)
    assert len(server.requests) == 2


def test_addresses() -> None:
    with pytest.raises(LoadError, match="expected an http"):
        HttpSource("file:///etc/hostname")
    with pytest.raises(LoadError, match="cannot be read"):
        HttpSource("http://127.0.0.1:9/m.gguf", timeout_seconds=2)
