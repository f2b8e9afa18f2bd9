"""A built and served site, and Chromium to open it in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Playwright

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
