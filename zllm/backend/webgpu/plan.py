"""From a recording to a program: places values in the pool, lowers every op, replays the result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zllm.backend.contract import (
    Cache,
    Op,
    PlanKey,
    Recording,
    RecordLayout,
    Round,
    StepLayout,
    Value,
    Weight,
)
from zllm.backend.webgpu.carry import Carry
from zllm.backend.webgpu.device import Buffer, Device, DeviceInfo, Dispatch, Program
from zllm.backend.webgpu.launch import fuse
from zllm.backend.webgpu.lowering import Bank, View
from zllm.backend.webgpu.pool import Lease, Pool
from zllm.backend.webgpu.reference import Host, HostOp, Place
from zllm.backend.webgpu.store import Store
from zllm.errors import BackendError


@dataclass(frozen=True, slots=True)
class Residents:
    """What lives as long as the backend, by name."""

    device: Device
    pool: Pool
    carry: Carry
    banks: Mapping[str, tuple[Bank, ...]]
    stores: Mapping[str, Store]
    host: Host | None  # where there is a reference to fall back on
    on_host: Callable[[Op], bool]  # ops that run on the reference
    # None: no kernel of the op can be trusted, so it runs on the reference as well.
    lowering: Callable[[Op, Compiler], list[Dispatch] | None]


# Ops that `fuse` folds into one another.
FUSED = frozenset({"rms_norm", "linear", "gated_linear"})


class Fused(Exception):
    """An op for the reference that only `fuse` knows."""


class Compiler:
    """Lowers one recording; the `Context` of its launchers."""

    def __init__(self, recording: Recording, residents: Residents, *, fused: bool = True) -> None:
        self.key: PlanKey = recording.key
        self.layout: StepLayout = recording.layout
        self.info: DeviceInfo = residents.device.info
        self._recording = recording
        on_host = {op.name for op in recording.ops if residents.on_host(op)}
        fused = fused and not on_host & FUSED
        self._ops = fuse(recording.ops, self.info) if fused else recording.ops
        self._residents = residents
        self._lease = Lease(residents.pool)
        self._views: dict[int, View] = {}
        self._readers = Counter(
            value.id for op in self._ops for value in op.ins if isinstance(value, Value)
        )
        self._living: Counter[Buffer] = Counter()  # values that still need each buffer
        self._scratch: list[Buffer] = []
        self._op: Op | None = None
        self.result_bytes = self._answer_bytes()
        # The whole round long: written before its first op, copied after its last.
        self.step: Buffer = self._lease.take(4 * self.layout.words, "the step")
        self.result: Buffer = self._lease.take(max(self.result_bytes, 4), "the result of a round")

    def _answer_bytes(self) -> int:
        key = self.key
        if key.emit == "token":
            return 4 * key.seqs * RecordLayout(key.top_logprobs).words
        if key.emit == "logits":
            (logits,) = (op.ins[0] for op in self._ops if op.name == "logits")
            assert isinstance(logits, Value)
            return 4 * logits.shape[0] * logits.shape[1]
        return 0

    def compile(self) -> WebGpuPlan:
        segments: list[list[Dispatch]] = [[]]
        hosts: list[HostOp] = []
        for op in self._ops:
            self._op = op
            self._place(op.outs)
            lowered = None if self._residents.on_host(op) else self._residents.lowering(op, self)
            if lowered is None:
                hosts.append(self._host_op(op))
                segments.append([])
            else:
                segments[-1] += lowered
            self._retire(op)
        calls = [dispatch for segment in segments for dispatch in segment]
        return WebGpuPlan(self.key, self.layout, self._programs(segments), hosts, calls, self.step)

    def _programs(self, segments: Sequence[list[Dispatch]]) -> list[Program]:
        """The first takes the step words, the last gives the result."""
        last = len(segments) - 1
        return [
            self._residents.device.program(
                dispatches,
                step=None if at else self.step,
                result=self.result if self.result_bytes and at == last else None,
                result_bytes=self.result_bytes if at == last else 0,
            )
            for at, dispatches in enumerate(segments)
        ]

    @contextmanager
    def seen_as(self, info: DeviceInfo) -> Iterator[None]:
        """Launchers see another device meanwhile, and choose other kernels."""
        kept, self.info = self.info, info
        try:
            yield
        finally:
            self.info = kept

    def _host_op(self, op: Op) -> HostOp:
        residents = self._residents
        assert residents.host is not None, op.name
        if residents.host.reference.missing(op) is not None:
            raise Fused(op.name)
        caches = [operand for operand in op.ins if isinstance(operand, Cache)]
        place = Place(
            views=tuple((v, self.view(v)) for v in op.ins if isinstance(v, Value)),
            out=tuple((value, self.view(value)) for value in op.outs),
            stores=tuple((cache, self.store(cache)) for cache in caches),
            result=self.result,
        )
        single = residents.host.single(op, self._recording)
        state = residents.host.reference.carry
        return HostOp(op, single, place, residents.device, residents.carry, state)

    def _place(self, outs: tuple[Value, ...]) -> None:
        """The results of one op lie side by side in one buffer, f32 and i32 words alike."""
        if not outs:
            return
        rows = outs[0].shape[0]
        widths = [int(np.prod(out.shape[1:])) for out in outs]
        buffer = self._lease.take(4 * rows * sum(widths), f"the result of {self._op_name()}")
        offset = 0
        for out, width in zip(outs, widths, strict=True):
            self._views[out.id] = View(buffer, offset, sum(widths), rows, width)
            self._living[buffer] += 1
            offset += width

    def _retire(self, op: Op) -> None:
        """Free scratch, the inputs read for the last time and the results nobody reads."""
        for buffer in self._scratch:
            self._lease.give(buffer)
        self._scratch.clear()
        done = [value.id for value in op.ins if isinstance(value, Value)]
        self._readers.subtract(done)
        for id in {*done, *(out.id for out in op.outs)}:
            if self._readers[id] <= 0:
                self._release(self._views[id].buffer)

    def _release(self, buffer: Buffer) -> None:
        self._living[buffer] -= 1
        if not self._living[buffer]:
            self._lease.give(buffer)

    def _op_name(self) -> str:
        return self._op.name if self._op else ""

    def view(self, value: Value, /) -> View:
        return self._views[value.id]

    def banks(self, weight: Weight, /) -> tuple[Bank, ...]:
        return self._residents.banks[weight.name]

    def store(self, cache: Cache, /) -> Store:
        return self._residents.stores[cache.name]

    def carry_token(self) -> Buffer:
        return self._residents.carry.token

    def carry_counts(self) -> Buffer:
        return self._residents.carry.counts(self._vocabulary())

    def carry_bias(self) -> Buffer:
        return self._residents.carry.bias(self._vocabulary())

    def _vocabulary(self) -> int:
        assert self._op is not None
        return int(self._op.spec.vocabulary)

    def scratch(self, size_bytes: int, /) -> Buffer:
        buffer = self._lease.take(size_bytes, f"scratch of {self._op_name()}")
        self._scratch.append(buffer)
        return buffer


class WebGpuPlan:
    """A compiled recording: programs, and between them ops that run on the host.

    It owns no memory but its programs' bind groups.
    """

    def __init__(
        self,
        key: PlanKey,
        layout: StepLayout,
        programs: Sequence[Program],
        hosts: Sequence[HostOp],
        calls: Sequence[Dispatch],
        step: Buffer,
    ) -> None:
        self.key = key
        self.layout = layout
        self.program, *self._rest = programs
        self.hosts = hosts
        self.calls = calls
        self.step = step
        self._seen: NDArray[np.int32] | None = None  # the words of the round before
        self._words = memoryview(b"")

    @property
    def dispatches(self) -> int:
        return len(self.calls)

    def submit(self, step: NDArray[np.int32], /) -> WebGpuTicket:
        if step is not self._seen:
            if step.dtype != np.int32 or step.shape != (self.layout.words,):
                raise BackendError(
                    f"step must be int32 [{self.layout.words}], got {step.dtype} {list(step.shape)}"
                )
            self._seen, self._words = step, step.data.cast("B")
        answer = self.program.submit(self._words)
        later = self._finish(answer, np.array(step)) if self.hosts else answer
        return WebGpuTicket(self.key, later)

    async def _finish(self, answer: Awaitable[memoryview], words: NDArray[np.int32]) -> memoryview:
        """The rest of a round that waits for the host between its programs."""
        for host, program in zip(self.hosts, self._rest, strict=True):
            await answer
            await host.run(words, self.layout)
            answer = program.submit(memoryview(b""))
        return await answer


class WebGpuTicket(Awaitable[Round]):
    """A submitted round."""

    def __init__(self, key: PlanKey, answer: Awaitable[memoryview]) -> None:
        self._key = key
        self._answer = answer

    def __await__(self) -> Generator[Any, None, Round]:
        data = yield from self._answer.__await__()
        key = self._key
        if key.emit == "logits":
            logits = np.frombuffer(data, np.float32).reshape(key.rows, -1)
            return Round(memoryview(b""), logits)
        if key.emit == "none":
            return Round(memoryview(b""))
        return Round(data.cast("i", (key.seqs, len(data) // 4 // key.seqs)))
