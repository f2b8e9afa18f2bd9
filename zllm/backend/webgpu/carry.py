"""Sampling state that stays on the device from round to round, per lane."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from zllm.backend.webgpu.device import Buffer, Device
from zllm.errors import BackendError


class Carry:
    """Made at first use: greedy rounds never need counts and bias. The last lane is scratch."""

    def __init__(self, device: Device, lanes: int) -> None:
        self._device = device
        self.rows = lanes + 1
        self._token: Buffer | None = None
        self._tables: dict[str, Buffer] = {}

    @property
    def token(self) -> Buffer:
        """i32 [lanes + 1]"""
        if self._token is None:
            self._token = self._device.buffer(4 * self.rows, "carried tokens")
        return self._token

    def counts(self, vocabulary: int) -> Buffer:
        """i32 [lanes + 1, V]"""
        return self._table("carried counts", vocabulary)

    def bias(self, vocabulary: int) -> Buffer:
        """f32 [lanes + 1, V]"""
        return self._table("carried bias", vocabulary)

    def write(
        self, lane: int, counts: NDArray[np.int32] | None, bias: NDArray[np.float32] | None
    ) -> None:
        assert 0 <= lane < self.rows
        for values, table in ((counts, self.counts), (bias, self.bias)):
            if values is not None:
                row = np.ascontiguousarray(values).data.cast("B")
                self._device.write(table(values.size), lane * row.nbytes, row)

    @property
    def size_bytes(self) -> int:
        return sum(buffer.size_bytes for buffer in self.buffers)

    @property
    def buffers(self) -> list[Buffer]:
        return [*self._tables.values(), *([self._token] if self._token else [])]

    def _table(self, name: str, vocabulary: int) -> Buffer:
        size = 4 * self.rows * vocabulary
        if size > self._device.info.max_binding_bytes:
            raise BackendError(
                f"{name} of {self.rows} lanes and {vocabulary} tokens exceed the binding limit of "
                f"{self._device.info.max_binding_bytes / 2**20:.0f} MiB; "
                "run fewer sequences at once"
            )
        if name not in self._tables:
            self._tables[name] = self._device.buffer(size, name)
        assert self._tables[name].size_bytes == size, "one vocabulary per backend"
        return self._tables[name]
