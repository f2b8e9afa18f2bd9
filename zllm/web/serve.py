"""Serve a built site on loopback: ranges, compression, and the headers that a host should send."""

from __future__ import annotations

import gzip
import json
import socket
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from zllm.errors import ZllmError
from zllm.web.build import MARK, SiteError

if TYPE_CHECKING:
    from starlette.applications import Starlette

HOST = "127.0.0.1"
# Nothing but this origin, and models from wherever the user names: `connect-src`.
POLICY = (
    "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; worker-src 'self'; "
    "style-src 'self'; img-src 'self' data: blob:; font-src 'self'; "
    "connect-src 'self' https: http://localhost:* http://127.0.0.1:*; manifest-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Embedder-Policy": "require-corp",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
TYPES = {".mjs": "text/javascript", ".js": "text/javascript", ".wasm": "application/wasm"}
PACKED_SUFFIXES = (".js", ".mjs", ".css", ".html", ".json", ".wasm", ".md")
LEAST_PACKED_BYTES = 1 << 10


def application(site: Path, models: dict[str, Path]) -> Starlette:
    """The site under /, each model file under /models/<file>, their list at /models.json."""
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.requests import Request
    from starlette.responses import FileResponse, Response
    from starlette.routing import Route

    class Large(FileResponse):
        chunk_size = 1 << 20

    listed = [
        {"name": name, "url": f"/models/{quote(path.name)}", "size": path.stat().st_size}
        for name, path in models.items()
    ]
    by_file = {path.name: path for path in models.values()}

    async def list_models(request: Request) -> Response:
        return Response(json.dumps(listed), media_type="application/json", headers=HEADERS)

    async def model(request: Request) -> Response:
        path = by_file.get(request.path_params["file"])
        if path is None:
            raise HTTPException(404)
        return Large(path, media_type="application/octet-stream", headers=HEADERS)

    async def file(request: Request) -> Response:
        path = _inside(site, request.path_params["path"] or "index.html")
        if path is None:
            raise HTTPException(404)
        kind = TYPES.get(path.suffix)
        packs = "gzip" in request.headers.get("accept-encoding", "")
        if packs and _worth_packing(path) and "range" not in request.headers:
            headers = HEADERS | {"Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
            data = _packed(path, path.stat().st_mtime_ns)
            return Response(data, media_type=kind or _guess(path), headers=headers)
        return FileResponse(path, media_type=kind, headers=HEADERS)

    return Starlette(
        routes=[
            Route("/models.json", list_models),
            Route("/models/{file}", model),
            Route("/{path:path}", file),
        ]
    )


def _inside(site: Path, name: str) -> Path | None:
    path = (site / name).resolve()
    return path if path.is_file() and path.is_relative_to(site.resolve()) else None


def _guess(path: Path) -> str:
    import mimetypes

    return mimetypes.guess_type(path.name)[0] or "application/octet-stream"


def _worth_packing(path: Path) -> bool:
    return path.suffix in PACKED_SUFFIXES and path.stat().st_size >= LEAST_PACKED_BYTES


@lru_cache(maxsize=64)
def _packed(path: Path, _changed: int) -> bytes:
    return gzip.compress(path.read_bytes(), 6)


def serve(site: Path, models: dict[str, Path], port: int, ready: Any = print) -> None:
    """Until interrupted; `ready` gets the address. SiteError if it cannot."""
    if not (site / MARK).is_file():
        raise SiteError(f"{site} is no site of zLLM's: build it with `zllm web build --out {site}`")
    try:
        import uvicorn

        app = application(site, models)
    except ImportError as error:
        raise SiteError(f"serving needs {error.name}: pip install 'zllm[web]'") from error
    listener = listen(port)
    ready(f"http://{HOST}:{listener.getsockname()[1]}/")
    config = uvicorn.Config(app, log_level="warning", lifespan="off", access_log=False)
    uvicorn.Server(config).run(sockets=[listener])


def listen(port: int) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
        listener.listen()
    except (OSError, OverflowError) as error:
        listener.close()
        raise ZllmError(
            f"port {port} cannot be used: {getattr(error, 'strerror', None) or error}; "
            "choose another by --port (0: any free one)"
        ) from error
    return listener
