"""WebGPU with a clock at every kernel: what ran when, and the bytes it had to move."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from zllm.backend.contract import Op, Value, Weight
from zllm.backend.traffic import chosen_share, weights_read
from zllm.backend.webgpu.backend import WebGpuBackend, adapter_of, with_settings
from zllm.backend.webgpu.bandwidth import busy_program
from zllm.backend.webgpu.lowering import Bank
from zllm.backend.webgpu.store import Dtype, Store
from zllm.backend.webgpu.tuned import FILE, keep
from zllm.backend.webgpu.wgpu_timing import Timed, TimingDevice, open_timing_device

WORD_BYTES = 4


@dataclass(frozen=True, slots=True)
class RoundSize:
    """Of one round: its sequences, and the tokens cached for all of them once it is done."""

    seqs: int
    cached: int


@dataclass(frozen=True, slots=True)
class TracedKernel:
    name: str
    op: str
    weight: str  # the name of its matrix, or of its first vector; "" without any
    begin_ns: float
    end_ns: float
    size_bytes: float  # of weights, caches, inputs and results, each counted once
    operations: float  # of products with weights: two for each weight and row; 0 elsewhere


def open_tracing_backend(
    *, lanes: int, kv_dtype: Dtype | None = None, verdicts: Path | None = None
) -> TracingBackend:
    """See open_backend. BackendError if there is no adapter with timestamp queries."""
    device = open_timing_device()
    device.info = with_settings(device.info, verdicts)
    return TracingBackend(device, lanes=lanes, kv_dtype=kv_dtype or "f16")


class TracingBackend(WebGpuBackend):
    """Rounds are traced one by one between `start_trace` and `end_trace`, all else runs as ever."""

    def __init__(self, device: TimingDevice, *, lanes: int, kv_dtype: Dtype = "f16") -> None:
        super().__init__(device, lanes=lanes, rounds_in_flight=1, kv_dtype=kv_dtype)
        self._timing = device

    def start_trace(self) -> None:
        if self._timing.busy is None and not self._timing.info.software:
            self._timing.busy = busy_program(self._timing)
        self._timing.rounds.clear()
        self._timing.timing = True

    def end_trace(self, size: Callable[[int], tuple[int, int]], /) -> list[list[TracedKernel]]:
        """The kernels of each round since the start.

        size: of the n-th round from 0, its sequences and the tokens cached for them when it ends.
        """
        self._timing.timing = False
        rounds = enumerate(self._timing.rounds)
        return [self._traced(timed, RoundSize(*size(at))) for at, timed in rounds]

    def tune(self, tokens: Sequence[int], measure: Any) -> Iterator[Any]:
        """See zllm.backend.webgpu.tune.search."""
        from zllm.backend.webgpu.tune import search

        return search(self, tokens, measure)

    def keep_best(self, tried: Sequence[Any], folder: Path) -> tuple[Any, ...]:
        """Write the best of what was tried for this adapter; what was written."""
        from zllm.backend.webgpu.tune import best

        found = best(tried)
        if found:
            keep(folder / FILE, adapter_of(self.device.info), found)
        return found

    def _traced(self, timed: Sequence[Timed], size: RoundSize) -> list[TracedKernel]:
        banks = {bank.buffer: bank for banks in self._banks.values() for bank in banks}
        stores = {
            buffer: (store, i)
            for store in self._stores.values()
            for i, buffer in enumerate(store.buffers)
        }
        found: list[TracedKernel] = []
        before: Op | None = None
        for kernel in timed:
            dispatch, op = kernel.dispatch, kernel.dispatch.op
            assert op is not None, dispatch.kernel.name
            size_bytes, operations = 0.0 if op is before else _value_bytes(op), 0.0
            for buffer in dict.fromkeys(dispatch.buffers):
                if buffer in banks:
                    size_bytes += _bank_bytes(op, banks[buffer])
                    operations += _operations(op, banks[buffer])
                elif buffer in stores:
                    size_bytes += _store_bytes(op, *stores[buffer], size)
            found.append(
                TracedKernel(
                    name=dispatch.kernel.name,
                    op=op.name,
                    weight=_weight_name(op),
                    begin_ns=kernel.begin_ns,
                    end_ns=kernel.end_ns,
                    size_bytes=size_bytes,
                    operations=operations,
                )
            )
            before = op
        return found


def _rows(op: Op) -> int:
    return next((v.shape[0] for v in (*op.outs, *op.ins) if isinstance(v, Value)), 1)


def _value_bytes(op: Op) -> int:
    """Of its inputs and results."""
    values = {v.id: v for v in (*op.ins, *op.outs) if isinstance(v, Value)}
    return sum(WORD_BYTES * prod(v.shape) for v in values.values())


def _bank_bytes(op: Op, bank: Bank) -> float:
    if not weights_read(op) or bank.buffer.label.startswith("rope_table."):
        return _rows(op) * WORD_BYTES * bank.row_words
    return bank.buffer.size_bytes * chosen_share(op, _rows(op))


def _operations(op: Op, bank: Bank) -> float:
    if not op.name.endswith(("linear", "experts")) or bank.rows == 1:  # 1: a bias or a norm
        return 0.0
    return 2.0 * bank.rows * bank.columns * _rows(op) * chosen_share(op, 1)


def _store_bytes(op: Op, store: Store, array: int, size: RoundSize) -> int:
    slot_bytes = store.slot_bytes[array]
    if store.page_slots == 1:  # a plane of state
        return size.seqs * slot_bytes
    if op.name.endswith("append"):
        return _rows(op) * slot_bytes
    return min(size.cached, _seen(op, size)) * slot_bytes


def _seen(op: Op, size: RoundSize) -> int:
    """The most tokens that the op can look at: those of windows, or those chosen for it."""
    chosen = [v.shape[1] for v in op.ins if isinstance(v, Value) and v.dtype == "i32"]
    if chosen:
        return _rows(op) * chosen[0]
    window = getattr(op.spec, "window", 0)
    return size.seqs * (window + _rows(op) // size.seqs) if window else size.cached


def _weight_name(op: Op) -> str:
    weights = (operand for operand in op.ins if isinstance(operand, Weight))
    named = [w for w in weights if not w.name.startswith("rope_table.")]
    return max(named, key=lambda w: len(w.shape), default=Weight("", (), ())).name
