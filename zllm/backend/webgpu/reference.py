"""Ops of a plan that run on the host's reference: operands come down, results go up again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from zllm.backend.contract import Backend, Cache, Group, Op, Recording, StepLayout, Value, Weight
from zllm.backend.webgpu.carry import Carry
from zllm.backend.webgpu.device import Buffer, Device
from zllm.backend.webgpu.lowering import View
from zllm.backend.webgpu.store import Store

if TYPE_CHECKING:
    from zllm.kv_cache.spec import CacheSpec
    from zllm.weight.linear_weight import LinearWeight

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]


class SingleOp(Protocol):
    """One op by itself: operands are filled in, then it is run, then results are taken."""

    records: I32  # [B, words]
    logits: F32 | None  # [R, V]

    def words(self, value: Value, /) -> F32:
        """[R, N], integers as their bits."""
        ...

    def cache(self, cache: Cache, /) -> tuple[F32, ...]:
        """Its arrays, slots first."""
        ...

    def run(self, step: I32, /) -> None: ...


class CarriedState(Protocol):
    """What rounds hand on per lane."""

    token: I32

    def counts(self, vocabulary: int, /) -> I32: ...

    def bias(self, vocabulary: int, /) -> F32: ...


class Reference(Backend, Protocol):
    """A backend on the host that runs single ops: the oracle."""

    carry: Any  # CarriedState

    def single(self, op: Op, recording: Recording, /) -> Any:
        """A SingleOp; its weights and caches were made here before."""
        ...


@dataclass(frozen=True, slots=True)
class Loaded:
    """A weight as it was loaded."""

    parts: tuple[LinearWeight, ...]
    uses: frozenset[str]


class Host:
    """The reference and what it holds so far of a backend's weights and caches."""

    def __init__(self, reference: Reference) -> None:
        self.reference = reference
        self._held: set[str] = set()
        self.weights: dict[str, Loaded] = {}
        self.caches: dict[str, tuple[CacheSpec, Group]] = {}

    def single(self, op: Op, recording: Recording) -> Any:
        for operand in op.ins:
            if isinstance(operand, Weight | Cache) and operand.name not in self._held:
                self._held.add(operand.name)
                if isinstance(operand, Weight):
                    loaded = self.weights[operand.name]
                    self.reference.load(operand.name, loaded.parts, uses=loaded.uses)
                else:
                    spec, group = self.caches[operand.name]
                    self.reference.new_cache(operand.name, spec, group=group)
        return self.reference.single(op, recording)


@dataclass(frozen=True, slots=True)
class Place:
    """Where the operands and results of an op lie on the device."""

    views: tuple[tuple[Value, View], ...]  # of its inputs
    out: tuple[tuple[Value, View], ...]  # side by side in one buffer
    stores: tuple[tuple[Cache, Store], ...]
    result: Buffer  # of the round


class HostOp:
    """One op between two segments of a plan."""

    def __init__(
        self,
        op: Op,
        single: SingleOp,
        place: Place,
        device: Device,
        carry: Carry,
        state: CarriedState,
    ) -> None:
        self.op = op
        self._state = state
        self._single = single
        self._place = place
        self._device = device
        self._carry = carry
        # The sampler alone carries counts and biases, and only where it draws.
        full = op.name == "sample" and op.spec.full
        self._vocabulary = int(op.spec.vocabulary) if full else 0

    async def run(self, step: I32, layout: StepLayout) -> None:
        """Once the segment before is done. Natively it blocks and never yields."""
        state = self._state
        before = await self._fetch(step, layout)
        counts = state.counts(self._vocabulary).copy() if self._vocabulary else None
        self._single.run(step)
        self._send_results()
        for (buffer, slot_bytes, old), new in zip(before, self._encoded(before), strict=True):
            self._send_changed(buffer, slot_bytes, old, new)
        if self.op.name == "sample":
            self._device.write(self._carry.token, 0, _bytes(state.token))
        if counts is not None:
            drawn = state.counts(self._vocabulary)
            buffer, size = self._carry.counts(self._vocabulary), 4 * self._vocabulary
            self._send_changed(buffer, size, counts.tobytes(), drawn.tobytes())

    async def _fetch(self, step: I32, layout: StepLayout) -> list[tuple[Buffer, int, bytes]]:
        """Fills the operands; the caches' bytes as they were: (buffer, bytes of a slot, bytes)."""
        state = self._state
        wanted: list[tuple[Buffer, int, int]] = [
            (view.buffer, 4 * view.offset, 4 * ((view.rows - 1) * view.stride + view.columns))
            for _, view in self._place.views
        ]
        arrays: list[tuple[Buffer, int]] = []
        for _, store in self._place.stores:
            slots = slots_in_use(step, layout, store)
            for buffer, size in zip(store.buffers, store.slot_bytes, strict=True):
                wanted.append((buffer, 0, min(slots * size, buffer.size_bytes)))
                arrays.append((buffer, size))
        wanted.append((self._carry.token, 0, self._carry.token.size_bytes))
        if self._vocabulary:
            tables = (self._carry.counts(self._vocabulary), self._carry.bias(self._vocabulary))
            wanted += [(table, 0, table.size_bytes) for table in tables]
        data = iter(await self._device.fetch(wanted))
        for value, view in self._place.views:
            self._single.words(value)[:] = _rows(next(data), view)
        held = [(buffer, size, next(data)) for buffer, size in arrays]
        self._decode(held)
        state.token[:] = np.frombuffer(next(data), np.int32)
        if self._vocabulary:
            counts, bias = state.counts(self._vocabulary), state.bias(self._vocabulary)
            counts[:] = np.frombuffer(next(data), np.int32).reshape(counts.shape)
            bias[:] = np.frombuffer(next(data), np.float32).reshape(bias.shape)
        return held

    def _arrays(self) -> Iterator[tuple[F32, np.dtype[Any]]]:
        """The reference's array for each buffer of the caches, and how the device keeps it."""
        for cache, store in self._place.stores:
            for array in self._single.cache(cache):
                yield array, np.dtype(np.float16 if store.dtype == "f16" else np.float32)

    def _decode(self, held: Sequence[tuple[Buffer, int, bytes]]) -> None:
        for (_, size, raw), (array, dtype) in zip(held, self._arrays(), strict=True):
            slots = len(raw) // size
            stored = np.frombuffer(raw, dtype, slots * size // dtype.itemsize)
            array[:slots] = stored.reshape(slots, *array.shape[1:])

    def _encoded(self, held: Sequence[tuple[Buffer, int, bytes]]) -> Iterator[bytes]:
        for (_, size, raw), (array, dtype) in zip(held, self._arrays(), strict=True):
            yield array[: len(raw) // size].astype(dtype).tobytes()

    def _send_results(self) -> None:
        place = self._place
        if place.out:
            first = place.out[0][1]
            joined = np.concatenate([self._single.words(value) for value, _ in place.out], axis=1)
            assert first.offset == 0 and first.stride == joined.shape[1], self.op
            self._device.write(first.buffer, 0, _bytes(joined))
        if self.op.name == "sample":
            self._device.write(place.result, 0, _bytes(self._single.records))
        if self.op.name == "logits":
            assert self._single.logits is not None
            self._device.write(place.result, 0, _bytes(self._single.logits))

    def _send_changed(self, buffer: Buffer, slot_bytes: int, old: bytes, new: bytes) -> None:
        """Slots that the op wrote, runs of them together."""
        was, now = (np.frombuffer(raw, np.uint8).reshape(-1, slot_bytes) for raw in (old, new))
        changed = (was != now).any(axis=1)
        (slots,) = np.nonzero(changed)
        for run in np.split(slots, np.nonzero(np.diff(slots) != 1)[0] + 1):
            if run.size:
                first, last = int(run[0]) * slot_bytes, (int(run[-1]) + 1) * slot_bytes
                self._device.write(buffer, first, memoryview(new)[first:last])


def slots_in_use(step: I32, layout: StepLayout, store: Store) -> int:
    """Slots of a cache from 0 on that hold all that a round reads and writes."""

    def most(name: str) -> int:
        return int(step[layout.offset[name] :][: layout.size[name]].max())

    if store.group not in layout.table_entries:  # planes of state
        return 1 + max(most("read_plane"), most("written_plane"))
    table, row = most(f"{store.group}.table"), most(f"{store.group}.row_slot")
    return max((table + 1) * store.page_slots, row + 1)


def _rows(raw: bytes, view: View) -> F32:
    """[rows, columns] of a fetched range that begins with the view's first element."""
    words = np.frombuffer(raw, np.float32)
    shape, strides = (view.rows, view.columns), (4 * view.stride, 4)
    return np.lib.stride_tricks.as_strided(words, shape, strides, writeable=False)


def _bytes(array: NDArray[Any]) -> memoryview:
    return np.ascontiguousarray(array).data.cast("B")
