"""A hub on this machine: the few endpoints that downloading asks for, with ranges and faults."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

COMMIT = "5f0d" * 10
# path of a file, or of a repository's listing
FILE = re.compile(r"/(?P<repo>[^/]+/[^/]+)/resolve/[^/]+/(?P<file>[^?]+)")
LISTING = re.compile(r"/api/models/(?P<repo>[^/]+/[^/]+)/(?P<kind>revision|tree)/[^?/]+")


@dataclass
class LocalHub:
    """What the hub holds, how it misbehaves, and what it was asked."""

    endpoint: str = ""
    files: dict[str, dict[str, bytes]] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    drop_once_after_bytes: int | None = None
    ranges: list[str | None] = field(default_factory=list)  # of every GET of a file
    requests: int = 0


@pytest.fixture
def local_hub() -> Iterator[LocalHub]:
    hub = LocalHub()
    handler = type("Handler", (HubHandler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    hub.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield hub
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def hub_env(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, local_hub: LocalHub) -> LocalHub:
    """The environment that a child process needs to meet this hub and no other."""
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "HF_HUB_CACHE", "HTTP_PROXY", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_ENDPOINT", local_hub.endpoint)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("ZLLM_CACHE", str(tmp_path / "zllm"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    return local_hub


class HubHandler(BaseHTTPRequestHandler):
    hub: LocalHub

    def do_HEAD(self) -> None:
        self.answer(with_body=False)

    def do_GET(self) -> None:
        self.answer(with_body=True)

    def answer(self, *, with_body: bool) -> None:
        self.hub.requests += 1
        found = FILE.match(self.path) or LISTING.match(self.path)
        repo = found["repo"] if found else ""
        if repo in self.hub.gated:
            self.refuse(403, "GatedRepo")
        elif found is None or repo not in self.hub.files:
            self.refuse(401, "RepoNotFound")
        elif "kind" in found.groupdict():
            self.list_files(repo, found["kind"])
        elif found["file"] not in self.hub.files[repo]:
            self.refuse(404, "EntryNotFound")
        else:
            self.send_file(self.hub.files[repo][found["file"]], with_body=with_body)

    def refuse(self, status: int, code: str) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("X-Error-Message", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def list_files(self, repo: str, kind: str) -> None:
        files = self.hub.files[repo]
        siblings = [{"rfilename": name} for name in files]
        tree = [
            {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
            for name, data in files.items()
        ]
        info = {"id": repo, "sha": COMMIT, "private": False, "siblings": siblings}
        body = json.dumps(info if kind == "revision" else tree).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def send_file(self, data: bytes, *, with_body: bool) -> None:
        wanted = self.headers.get("Range")
        start = int(wanted.removeprefix("bytes=").partition("-")[0]) if wanted else 0
        self.send_response(206 if wanted else 200)
        self.send_header("ETag", f'"{hashlib.sha256(data).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(len(data) - start))
        if wanted:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.end_headers()
        if with_body:
            self.hub.ranges.append(wanted)
            self.send_body(data[start:])

    def send_body(self, data: bytes) -> None:
        limit, self.hub.drop_once_after_bytes = self.hub.drop_once_after_bytes, None
        self.wfile.write(data[:limit])
        if limit is not None:
            self.wfile.flush()
            self.close_connection = True
            self.connection.shutdown(2)

    def log_message(self, format: str, *args: object) -> None:
        pass
