"""A built and served site, and Chromium to open it in."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Playwright

from tests.browser.visitor import DESKTOP, Visitor
from tests.helpers.serving import serving
from zllm.web.build import Built, build

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


@pytest.fixture(scope="module")
def chromium(playwright: Playwright, chromium_path: Path) -> Iterator[Browser]:
    browser = playwright.chromium.launch(executable_path=str(chromium_path), args=ARGS)
    yield browser
    browser.close()


@pytest.fixture(scope="session")
def shots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where screenshots are kept: $ZLLM_SCREENSHOTS, or beside the run's temporary files."""
    chosen = os.environ.get("ZLLM_SCREENSHOTS")
    folder = Path(chosen) if chosen else tmp_path_factory.mktemp("screenshots")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture
def context(chromium: Browser) -> Iterator[BrowserContext]:
    opened = chromium.new_context(viewport=DESKTOP)  # type: ignore[arg-type]
    yield opened
    opened.close()


@pytest.fixture
def visitor(context: BrowserContext, served: str, shots: Path) -> Iterator[Visitor]:
    someone = Visitor(context.new_page(), served, shots)
    yield someone
    assert someone.errors == []
