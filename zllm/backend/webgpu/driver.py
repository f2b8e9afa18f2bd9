"""Which driver serves this process: navigator.gpu in a page, wgpu-py elsewhere."""

from __future__ import annotations

import sys

from zllm.backend.webgpu.device import Device


async def renew() -> None:
    """Ask the browser for another device after a loss; elsewhere opening one is enough.

    BackendError without one.
    """
    if sys.platform == "emscripten":
        import zllm_page

        from zllm.backend.webgpu.browser_device import request_device

        await request_device(zllm_page)


def open_device() -> Device:
    """The preferred adapter's device. BackendError without one."""
    if sys.platform == "emscripten":
        from zllm.backend.webgpu import browser_device

        return browser_device.open_device()
    from zllm.backend.webgpu import wgpu_device

    return wgpu_device.open_device()
