"""A site served by a thread of its own."""

from __future__ import annotations

import threading
from pathlib import Path

import uvicorn

from zllm.web.serve import application, listen


class serving:
    """`with serving(site, models) as url`: the address, without a slash at its end."""

    def __init__(self, folder: Path, models: dict[str, Path]) -> None:
        self._app = application(folder, models)

    def __enter__(self) -> str:
        listener = listen(0)
        config = uvicorn.Config(self._app, log_level="warning", lifespan="off")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [listener]}, daemon=True
        )
        self._thread.start()
        return f"http://127.0.0.1:{listener.getsockname()[1]}"

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join(10)
