"""A site served by a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import uvicorn

from zllm.web.serve import application, listen


class serving:
    """`with serving(site, models) as url`: the address, without a slash at its end."""

    def __init__(self, folder: Path, models: dict[str, Path]) -> None:
        self._inner = application(folder, models)
        self.url = ""
        self.delay_s = 0.0  # before each answer of a model's bytes
        self.ranges: list[str] = []  # asked of models

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["path"].startswith("/models/"):
            self.ranges.append(dict(scope["headers"]).get(b"range", b"").decode())
            await asyncio.sleep(self.delay_s)
        await self._inner(scope, receive, send)

    def __enter__(self) -> str:
        return self.start()

    def start(self) -> str:
        listener = listen(0)
        config = uvicorn.Config(self._app, log_level="warning", lifespan="off", interface="asgi3")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [listener]}, daemon=True
        )
        self._thread.start()
        return f"http://127.0.0.1:{listener.getsockname()[1]}"

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join(10)
