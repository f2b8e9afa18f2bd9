"""The copying kernel copies, and its bandwidth is what was moved over the time it took."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from zllm.backend.webgpu import bandwidth
from zllm.errors import BackendError

if TYPE_CHECKING:
    from zllm.backend.webgpu.device import Buffer, Device, Program
    from zllm.backend.webgpu.wgpu_device import WgpuDevice

pytestmark = pytest.mark.vulkan


def test_all_is_copied(device: WgpuDevice) -> None:
    first, second = device.buffer(4096, "from"), device.buffer(4096, "to")
    bandwidth._randomise(device, first)
    bandwidth._back_and_forth(device, first, second, groups=1, copies=1).submit(memoryview(b""))
    copied = np.frombuffer(device.read(second, 0, 4096), np.uint8)
    np.testing.assert_array_equal(copied, np.frombuffer(device.read(first, 0, 4096), np.uint8))
    assert len(set(copied.tolist())) > 200


def test_bytes_over_seconds_and_nothing_stays(
    device: WgpuDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bandwidth, "SOFTWARE_BYTES", 1 << 20)
    times: list[float] = []
    measured = bandwidth._seconds

    def noted(device: Device, program: Program, buffer: Buffer) -> float:
        times.append(measured(device, program, buffer))
        return times[-1]

    monkeypatch.setattr(bandwidth, "_seconds", noted)
    held = device.held_bytes
    found = bandwidth.copy_bandwidth(device)
    # The first run makes the pipeline; two copies read and write a MiB each.
    assert found == pytest.approx(2 * 2 * (1 << 20) / min(times[1:]))
    assert device.held_bytes - held <= 16


def test_smaller_buffers_where_large_ones_do_not_fit(
    device: WgpuDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, room = device.buffer, 20 << 20

    def full(size_bytes: int, label: str) -> Buffer:
        if size_bytes > room:
            raise BackendError("out of memory")
        return make(size_bytes, label)

    monkeypatch.setattr(device, "buffer", full)
    first, second = bandwidth._two_buffers(device, 64 << 20)
    assert first.size_bytes == second.size_bytes == 16 << 20
    room = 1 << 20
    with pytest.raises(BackendError, match="out of memory"):
        bandwidth._two_buffers(device, 64 << 20)
