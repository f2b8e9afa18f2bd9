"""One device for the module's tests; opening one takes half a second."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from zllm.backend.webgpu.wgpu_device import WgpuDevice


@pytest.fixture(scope="module")
def device() -> Iterator[WgpuDevice]:
    from zllm.backend.webgpu.wgpu_device import open_device

    opened = open_device()
    yield opened
    opened.close()
