"""What the page's worker decides before it loads a model."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from zllm.errors import BackendError
from zllm.web import worker


def model(weights: float, size_bytes: float) -> Any:
    tensors = {"a": SimpleNamespace(shape=(int(weights / 2), 2))}
    return SimpleNamespace(checkpoint=SimpleNamespace(tensors=tensors, size_bytes=int(size_bytes)))


def test_numpy_keeps_weights_as_they_fit_in_a_page() -> None:
    assert worker._resident(model(135e6, 98e6)) == "f32"
    assert worker._resident(model(3e9, 1.7e9)) == "packed"
    with pytest.raises(BackendError, match=r"take 4.2 GB, and a page has at most 3.4 GB.*smaller"):
        worker._resident(model(8e9, 4.2e9))
