"""Buffers that all plans share: rounds run one by one, so only lifetimes inside a round matter."""

from __future__ import annotations

from zllm.backend.webgpu.device import Buffer, Device
from zllm.errors import BackendError

GRAIN_BYTES = 256
# A buffer may serve a value this many times smaller; below SMALL_BYTES any may.
SLACK = 4
SMALL_BYTES = 64 << 10


class Pool:
    """Grows with the largest plan and is then reused."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.buffers: list[Buffer] = []

    @property
    def size_bytes(self) -> int:
        return sum(buffer.size_bytes for buffer in self.buffers)


class Lease:
    """One plan's use of the pool while it is compiled; all of it is free to the next plan."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._free = list(pool.buffers)

    def take(self, size_bytes: int, what: str) -> Buffer:
        """At least `size_bytes`. BackendError if no binding can be that large."""
        info = self._pool.device.info
        size = -(-size_bytes // GRAIN_BYTES) * GRAIN_BYTES
        if size_bytes > info.max_binding_bytes:
            raise BackendError(
                f"{what} takes {size_bytes / 2**20:.0f} MiB, and {info.name} binds at most "
                f"{info.max_binding_bytes / 2**20:.0f} MiB; run fewer tokens or sequences at once"
            )
        limit = max(size * SLACK, SMALL_BYTES)
        fitting = [b for b in self._free if size <= b.size_bytes <= limit]
        if fitting:
            best = min(fitting, key=lambda buffer: buffer.size_bytes)
            self._free.remove(best)
            return best
        made = self._pool.device.buffer(min(size, info.max_binding_bytes), "activations")
        self._pool.buffers.append(made)
        return made

    def give(self, buffer: Buffer) -> None:
        self._free.append(buffer)
