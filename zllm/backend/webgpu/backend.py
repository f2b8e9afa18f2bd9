"""The WebGPU backend: memory, residency and submission over any `Device` driver."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from zllm.backend.contract import PACKED_USES, Cache, Group, Op, PlanKey, Recording, Weight
from zllm.backend.verdicts import Verdicts
from zllm.backend.webgpu import launch
from zllm.backend.webgpu.bandwidth import copy_bandwidth
from zllm.backend.webgpu.budget import (
    cache_bytes,
    f32_bytes,
    free_memory,
    matrix_bytes,
    scratch_bytes,
)
from zllm.backend.webgpu.carry import Carry
from zllm.backend.webgpu.device import Device, DeviceInfo
from zllm.backend.webgpu.lowering import Bank
from zllm.backend.webgpu.plan import Compiler, Fused, Residents, WebGpuPlan
from zllm.backend.webgpu.pool import Pool
from zllm.backend.webgpu.profile import profile
from zllm.backend.webgpu.reference import Host, Loaded, Reference
from zllm.backend.webgpu.self_check import self_check
from zllm.backend.webgpu.store import Dtype, Store, copy_slots, open_store
from zllm.backend.webgpu.trust import Lowering, Trust
from zllm.backend.webgpu.tuned import FILE, with_found
from zllm.backend.webgpu.upload import upload_f32, upload_matrix
from zllm.errors import BackendError, notice
from zllm.kv_cache.spec import CacheSpec
from zllm.weight.linear_weight import LinearWeight

if TYPE_CHECKING:
    from zllm.backend.selftest.compare import Outcome

# Rows of prefill plans; the last is the most of a round: a long submit blocks a software adapter's
# caller, and on a GPU it may trip the watchdog. Padding is cheap on a GPU and dear on a CPU.
SOFTWARE_ROWS = (8, 16, 32, 48, 64)
HARDWARE_ROWS = (16, 64, 256, 512)
FIRST_CONTEXT, CONTEXT_STEP = 256, 4  # contexts of plans: 256, 1024, 4096, …


# Ops that the recorder makes of simpler ones where they are missing.
COMPOSED = frozenset({"gated_linear"})


def open_backend(
    *,
    lanes: int,
    software: bool = True,
    oracle: Callable[[int], Reference] | None = None,
    reference_ops: Collection[str] = (),
    kv_dtype: Dtype | None = None,
    verdicts: Path | None = None,
) -> WebGpuBackend:
    """On the preferred adapter of this machine. BackendError without one, or without wgpu-py.

    software: take a software adapter (lavapipe) too, where there is no other. oracle: makes a
    reference of so many lanes. verdicts: where it is kept which kernels are right; without it they
    are not checked. Settings found by a search are read beside it.
    """
    from zllm.backend.webgpu.driver import open_device

    device = open_device()
    if device.info.software and not software:
        device.close()
        raise BackendError(
            f"the only WebGPU adapter is software ({device.info.name}), slower than the oracle; "
            "ask for it by --backend webgpu"
        )
    device.info = with_settings(device.info, verdicts)
    backend = WebGpuBackend(
        device,
        lanes=lanes,
        reference=None if oracle is None else oracle(lanes),
        reference_ops=reference_ops,
        kv_dtype=kv_dtype or "f16",
    )
    if oracle is not None and verdicts is not None:
        known = Verdicts(verdicts, adapter_of(device.info))
        backend.check_kernels(known, oracle, later=sys.platform == "emscripten")
    return backend


def with_settings(info: DeviceInfo, verdicts: Path | None) -> DeviceInfo:
    """With what a search found for the adapter, if it was kept beside `verdicts`."""
    if verdicts is None:
        return info
    found = with_found(info.tuning, verdicts.with_name(FILE), adapter_of(info))
    return replace(info, tuning=found)


def adapter_of(info: DeviceInfo) -> str:
    """What verdicts depend on: the adapter and its driver."""
    return f"{info.name}, {info.driver}"


class WebGpuBackend:
    """Weights stay packed; nothing is allocated per token.

    lanes: sequences that carry sampling state; lane `lanes` is scratch. reference: runs on the
    host the ops named by `reference_ops`, and those that have no kernel; with as many lanes.
    """

    name = "webgpu"
    keeps_prefill = True

    def __init__(
        self,
        device: Device,
        *,
        lanes: int,
        rounds_in_flight: int | None = None,
        reference: Reference | None = None,
        reference_ops: Collection[str] = (),
        kv_dtype: Dtype = "f16",
    ) -> None:
        self._host = None if reference is None else Host(reference)
        self._reference_ops = set(reference_ops)
        self._refused: set[str] = set()  # ops without a kernel that were told of
        software = device.info.software
        # A software adapter computes inside submit, so nothing can run ahead.
        self.rounds_in_flight = rounds_in_flight or (1 if software else 2)
        self._row_buckets = SOFTWARE_ROWS if software else HARDWARE_ROWS
        self.prefill_rows = self._row_buckets[-1]
        self.device = device
        self._pool = Pool(device)
        self._carry = Carry(device, lanes)
        self._banks: dict[str, tuple[Bank, ...]] = {}
        self._stores: dict[str, Store] = {}
        self._slots = 0  # tokens that the largest cache holds
        self._kv_dtype: Dtype = kv_dtype
        self._lowering: Lowering = launch.lower
        self._trust: Trust | None = None
        self._closed = False

    def load(
        self,
        name: str,
        parts: Sequence[LinearWeight],
        /,
        *,
        uses: frozenset[str],
        together: int = 1,
        most: int | None = None,
    ) -> Weight:
        assert parts and len({part.shape[1:] for part in parts}) == 1, name
        assert name not in self._banks, f"{name} is loaded already"
        if self._host is not None:
            self._host.weights[name] = Loaded(tuple(parts), uses)
        vector = len(parts[0].shape) == 1
        if vector or not uses <= PACKED_USES:
            self._banks[name] = (upload_f32(self.device, name, parts),)
        else:
            self._banks[name] = upload_matrix(self.device, name, parts, together, most)
        rows = tuple(part.shape[0] for part in parts)
        return Weight(name, (sum(rows), *parts[0].shape[1:]), rows)

    def new_cache(self, name: str, spec: CacheSpec, /, *, group: Group) -> Cache:
        self._stores[name] = open_store(self.device, name, spec, group, self._kv_dtype)
        if group.page_slots > 1:  # not planes
            self._slots = max(self._slots, (group.pages - 1) * group.page_slots)
        if self._host is not None:
            self._host.caches[name] = spec, group
        return Cache(name, group.name)

    def copy_slots(self, group: str, source: Sequence[int], target: Sequence[int], /) -> None:
        stores = [store for store in self._stores.values() if store.group == group]
        copy_slots(self._pool, stores, source, target)

    def write_lane(
        self, lane: int, /, *, counts: NDArray[np.int32] | None, bias: NDArray[np.float32] | None
    ) -> None:
        self._carry.write(lane, counts, bias)

    def bucket(self, key: PlanKey, /) -> PlanKey:
        seqs = 1 << (key.seqs - 1).bit_length()
        context = FIRST_CONTEXT
        while context < key.context:
            context *= CONTEXT_STEP
        context = max(min(context, self._slots or context), key.context)
        rows = seqs if key.rows == key.seqs else _row_bucket(key.rows, seqs, self._row_buckets)
        return PlanKey(rows, seqs, context, key.emit, key.sampler, key.top_logprobs)

    def check_kernels(
        self, verdicts: Verdicts, oracle: Callable[[int], Reference], *, later: bool = False
    ) -> None:
        """From now on, use no kernel that is not known to be right or was found so.

        later: not before `settle` is awaited.
        """

        def scratch(lowering: Lowering, on_host: frozenset[str], lanes: int) -> WebGpuBackend:
            made = WebGpuBackend(
                self.device,
                lanes=lanes,
                reference=oracle(lanes),
                reference_ops=on_host,
                kv_dtype=self._kv_dtype,
            )
            made._lowering = lowering
            return made

        half = self._kv_dtype == "f16"
        self._trust = Trust(verdicts, oracle, scratch, half=half, later=later)
        self._lowering = self._trust.lowered

    async def settle(self) -> bool:
        """Check the kernels of the plans made so far. True: make them anew, one is wrong."""
        return self._trust is not None and await self._trust.settle()

    async def profile(self, plan: WebGpuPlan, position: int) -> list[tuple[str, float]]:
        """(op, seconds) of a decode round at a position, the longest first."""
        scratch_lane = self._carry.rows - 1
        return await profile(
            self.device, plan.calls, plan.step, plan.layout, position, scratch_lane
        )

    async def self_check(
        self, recordings: Sequence[Recording], oracle: Reference
    ) -> AsyncIterator[tuple[str, Outcome]]:
        """(what, outcome) of each kernel of the recordings on a small case. oracle: for cases."""

        def scratch(lanes: int) -> WebGpuBackend:
            return WebGpuBackend(self.device, lanes=lanes, kv_dtype=self._kv_dtype)

        banks = self._banks
        outcomes = self_check(
            recordings,
            self.device.info,
            lambda weight: banks[weight.name],
            scratch,
            oracle,
            half=self._kv_dtype == "f16",
        )
        async for what, outcome in outcomes:
            yield what, outcome

    def missing(self, op: Op, /) -> str | None:
        reason = launch.missing(op, self.device.info)
        if reason is None or self._host is None or op.name in COMPOSED:
            return reason
        if self._host.reference.missing(op) is not None:
            return reason
        if op.name not in self._refused:
            self._refused.add(op.name)
            notice(f"webgpu: {op.name} runs on the NumPy reference, slowly: {reason}")
        return None

    def compile(self, recording: Recording, /) -> WebGpuPlan:
        residents = Residents(
            self.device,
            self._pool,
            self._carry,
            self._banks,
            self._stores,
            self._host,
            self._on_host,
            self._lowering,
        )
        try:
            plan = Compiler(recording, residents).compile()
        except Fused:
            plan = Compiler(recording, residents, fused=False).compile()
        if plan.hosts:
            self.rounds_in_flight = 1  # such a round is done only once it is awaited
        return plan

    def _on_host(self, op: Op) -> bool:
        if op.name in self._reference_ops:
            return True
        return op.name in self._refused and launch.missing(op, self.device.info) is not None

    def free_bytes(self) -> int | None:
        """Only a software adapter tells: it shares the machine's memory."""
        return free_memory() if self.device.info.software else None

    def load_bytes(self, parts: Sequence[LinearWeight], /, *, uses: frozenset[str]) -> int:
        """What `load` would hold."""
        packed = len(parts[0].shape) == 2 and uses <= PACKED_USES
        return matrix_bytes(parts, self.device.info) if packed else f32_bytes(parts)

    def cache_bytes(self, spec: CacheSpec, /, *, group: Group) -> int:
        """What `new_cache` would hold."""
        return cache_bytes(spec, group, self._kv_dtype)

    def scratch_bytes(self, op: Op, /) -> int:
        """Of a plan, beside the results of ops."""
        return scratch_bytes(op, self.device.info)

    def memory(self) -> Mapping[str, int]:
        """Bytes of device memory; activations include carried state and readbacks."""
        weights = sum(bank.buffer.size_bytes for banks in self._banks.values() for bank in banks)
        caches = sum(store.size_bytes for store in self._stores.values())
        return {
            "weights": weights,
            "caches": caches,
            "activations": self.device.held_bytes - weights - caches,
        }

    def weight_bytes(self, weight: Weight, /) -> int:
        return sum(bank.buffer.size_bytes for bank in self._banks[weight.name])

    def slot_bytes(self, group: str, /) -> int:
        stores = (store for store in self._stores.values() if store.group == group)
        return sum(sum(store.slot_bytes) for store in stores)

    def copy_bandwidth(self) -> float:
        """Bytes per second that a kernel reads and writes, measured now."""
        return copy_bandwidth(self.device)

    def release(self) -> None:
        """Free all memory, but leave the device to others."""
        self._closed = True
        banks = [bank.buffer for banks in self._banks.values() for bank in banks]
        caches = [buffer for store in self._stores.values() for buffer in store.buffers]
        for buffer in (*banks, *caches, *self._pool.buffers, *self._carry.buffers):
            self.device.destroy(buffer)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self.device.close()
            self._banks.clear()
            self._stores.clear()


def _row_bucket(least: int, seqs: int, buckets: Sequence[int]) -> int:
    """Rows of a prefill plan: never as many as sequences, which would make it a decode plan."""
    for rows in buckets:
        if rows >= least and rows != seqs:
            return rows
    step = buckets[-1]
    rows = -(-least // step) * step
    return rows if rows != seqs else rows + step
