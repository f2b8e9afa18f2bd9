"""A built and served site, and Chromium to open it in."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn
from playwright.sync_api import Browser, Playwright, sync_playwright

from zllm.web.build import Built, build
from zllm.web.serve import application, listen

ARGS = [
    "--no-sandbox",
    "--enable-unsafe-webgpu",
    "--use-webgpu-adapter=swiftshader",
    "--disable-background-networking",
]


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return build(tmp_path_factory.mktemp("web") / "site")


@pytest.fixture(scope="session")
def served(built: Built, smollm2_path: Path) -> Iterator[str]:
    """The address of the site, without a slash at its end."""
    with serving(built.folder, {"smollm2": smollm2_path}) as url:
        yield url


class serving:
    """A site served by a thread of its own."""

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


@pytest.fixture(scope="session")
def playwright() -> Iterator[Playwright]:
    with sync_playwright() as running:
        yield running


@pytest.fixture(scope="session")
def chromium(playwright: Playwright, chromium_path: Path) -> Iterator[Browser]:
    browser = playwright.chromium.launch(executable_path=str(chromium_path), args=ARGS)
    yield browser
    browser.close()
