from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cross_backend.backends import BACKENDS, Expected, chosen
from zllm.embedded import Engine

Open = Callable[[Path], Engine]


@pytest.fixture(scope="session", params=chosen())
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session")
def expected(backend: str) -> Expected:
    return BACKENDS[backend]


@pytest.fixture(scope="session")
def open_engine(backend: str) -> Iterator[Open]:
    """Engines of this backend, one per model for the whole run."""
    engines: dict[Path, Engine] = {}

    def open_one(path: Path, **options: Any) -> Engine:
        if path not in engines:
            engines[path] = Engine(model=path, backend=backend, **options)
        return engines[path]

    yield open_one
    for engine in engines.values():
        engine.close()
