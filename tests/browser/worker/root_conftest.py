"""tests/conftest.py inside the worker: no pull, no packages, nothing to skip."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_configure(config: pytest.Config) -> None:
    for name in ("vulkan", "browser", "timeout"):
        config.addinivalue_line("markers", name)


@pytest.fixture(scope="session")
def data_dir() -> Path:
    return Path(__file__).parent / "data"
