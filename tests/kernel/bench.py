"""A workbench for kernels: runs one op through its launcher, without a backend around it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zllm.backend.contract import Cache, Group, Op, PlanKey, StepLayout, Value, Weight
from zllm.backend.webgpu.device import Buffer, Device, DeviceInfo
from zllm.backend.webgpu.launch import lower, missing, resident
from zllm.backend.webgpu.lowering import Bank, View
from zllm.backend.webgpu.store import Dtype, Store
from zllm.backend.webgpu.upload import upload_matrix
from zllm.quant.random_blocks import random_blocks as random_blocks
from zllm.weight.linear_weight import LinearWeight

F32 = NDArray[np.float32]
PAGE_SLOTS = 4
ONE_TOKEN = PlanKey(1, 1, 64, "token")
GUARD = 5  # elements before and after what a view covers


def assert_close(got: F32, expected: F32, tolerance: float) -> None:
    """|difference| <= tolerance × the largest expected magnitude, and no NaN."""
    assert got.shape == expected.shape
    worst = np.abs(got - expected).max()
    scale = np.abs(expected).max()
    assert worst <= tolerance * scale, f"off by {worst / scale:.2e} of the largest value"


@dataclass
class Bench:
    """The launchers' Context for one op; buffers are filled with NaN before they are written."""

    device: Device
    info: DeviceInfo
    key: PlanKey = ONE_TOKEN
    lanes: int = 4
    layout: StepLayout = field(init=False)
    _views: dict[int, View] = field(default_factory=dict)
    _banks: dict[str, tuple[Bank, ...]] = field(default_factory=dict)
    _stores: dict[str, Store] = field(default_factory=dict)
    _carry: dict[str, Buffer] = field(default_factory=dict)
    _words: dict[str, NDArray[Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.plan(self.key)

    def plan(self, key: PlanKey, *, pages: int = 0, **words: Any) -> None:
        """The round's key and its step words; floats are stored as bits."""
        self.key = key
        groups = [Group("full", PAGE_SLOTS, pages)] if pages else []
        self.layout = StepLayout(key, groups)
        self._words = {"valid_rows": np.array([key.rows]), "valid_seqs": np.array([key.seqs])}
        for name, value in words.items():
            self._words[name.replace("full_", "full.")] = np.asarray(value)

    def buffer(self, data: NDArray[Any]) -> Buffer:
        flat = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        padded = np.concatenate([flat, np.zeros(-flat.size % 4, np.uint8)])
        buffer = self.device.buffer(max(padded.size, 4), "test")
        self.device.write(buffer, 0, padded.data)
        return buffer

    def input(self, x: F32, *, offset: int = 0, gap: int = 0) -> Value:
        """x [R, C] at an element offset, rows `gap` elements apart, NaN between."""
        rows, columns = x.shape
        held = np.full(offset + rows * (columns + gap), np.nan, np.float32)
        held[offset:].reshape(rows, -1)[:, :columns] = x
        return self._value(View(self.buffer(held), offset, columns + gap, rows, columns))

    def output(self, rows: int, columns: int, *, gap: int = 0, guard: int = GUARD) -> Value:
        held = np.full(2 * guard + rows * (columns + gap), np.nan, np.float32)
        return self._value(View(self.buffer(held), guard, columns + gap, rows, columns))

    def parts(self, rows: int, widths: Sequence[int]) -> tuple[Value, ...]:
        """Outputs side by side in one buffer."""
        whole = self._views[self.output(rows, sum(widths)).id]
        starts = np.cumsum([0, *widths[:-1]])
        return tuple(
            self._value(View(whole.buffer, whole.offset + int(at), whole.stride, rows, width))
            for at, width in zip(starts, widths, strict=True)
        )

    def fill(self, parts: Sequence[Value], x: F32) -> None:
        """x [R, C] into parts that lie side by side."""
        view = self._views[parts[0].id]
        held = np.array(self.read(view.buffer))
        held[view.offset : view.offset + x.size] = x.reshape(-1)
        self.device.write(view.buffer, 0, held.view(np.uint8).data)

    def _value(self, view: View) -> Value:
        value = Value(len(self._views), (view.rows, view.columns))
        self._views[value.id] = view
        return value

    def vector(self, data: F32, name: str = "vector") -> Weight:
        bank = Bank(self.buffer(data), "f32", 0, 1, data.size, data.size)
        self._banks[name] = (bank,)
        return Weight(name, data.shape, data.shape[:1])

    def matrix(self, *parts: tuple[str, NDArray[np.uint8]], columns: int) -> Weight:
        """Encoded rows of each part; every part becomes a bank of its own."""
        banks: list[Bank] = []
        first = 0
        for format, rows in parts:
            banks.append(self._bank(format, rows, first, columns))
            first += len(rows)
        name = f"matrix {len(self._banks)}"
        self._banks[name] = tuple(banks)
        return Weight(name, (first, columns), tuple(len(rows) for _, rows in parts))

    def uploaded(self, weight: LinearWeight) -> Weight:
        """A matrix as the backend uploads it."""
        name = f"matrix {len(self._banks)}"
        self._banks[name] = upload_matrix(self.device, name, [weight])
        return Weight(name, weight.shape, weight.shape[:1])

    def joined(
        self, format: str, rows: NDArray[np.uint8], widths: Sequence[int], columns: int
    ) -> Weight:
        """One bank that holds several parts."""
        weight = self.matrix((format, rows), columns=columns)
        return Weight(weight.name, weight.shape, tuple(widths))

    def _bank(self, format: str, rows: NDArray[np.uint8], first: int, columns: int) -> Bank:
        form = resident(format, columns, self.info)
        padded = np.zeros((len(rows), -(-rows.shape[1] // 4) * 4), np.uint8)
        padded[:, : rows.shape[1]] = rows
        raw = Bank(self.buffer(padded), format, first, len(rows), columns, padded.shape[1] // 4)
        if form.repack is None:
            assert raw.row_words == form.row_words
            return raw
        held = self.buffer(np.full(len(rows) * form.row_words, np.nan, np.float32))
        bank = Bank(held, form.format, first, len(rows), columns, form.row_words)
        self.device.program(form.repack(raw, bank)).submit(memoryview(b""))
        return bank

    def cache(self, k: F32, v: F32, dtype: Dtype = "f32") -> Cache:
        """Keys and values [slots, G, K]."""
        stored = [np.asarray(array, "<f2" if dtype == "f16" else np.float32) for array in (k, v)]
        return self.store_of("kv", stored, dtype=dtype)

    def store_of(
        self,
        name: str,
        arrays: Sequence[NDArray[Any]],
        *,
        group: str = "full",
        dtype: Dtype = "f32",
    ) -> Cache:
        """Arrays [slots, …] as a cache. Planes of state have pages of one slot."""
        slot_bytes = tuple(array[0].nbytes for array in arrays)
        buffers = tuple(self.buffer(array) for array in arrays)
        page_slots = 1 if group == "state" else PAGE_SLOTS
        self._stores[name] = Store(buffers, slot_bytes, group, page_slots, dtype)
        return Cache(name, group)

    def carry(self, name: str, data: NDArray[Any]) -> None:
        self._carry[name] = self.buffer(data)

    def run(
        self, name: str, ins: tuple[Any, ...], outs: tuple[Value, ...] = (), spec: Any = None
    ) -> None:
        op = Op(name, ins, outs, spec)
        assert missing(op, self.info) is None
        self.step = self.buffer(self._step())
        self.device.program(lower(op, self)).submit(memoryview(b""))

    def _step(self) -> NDArray[np.int32]:
        step = np.zeros(self.layout.words, np.int32)
        for name, value in self._words.items():
            at, size = self.layout.offset[name], self.layout.size[name]
            if value.dtype.kind == "f":
                value = value.astype(np.float32).view(np.int32)
            assert value.size <= size, name
            step[at : at + value.size] = value.reshape(-1)
        return step

    def read(self, buffer: Buffer, dtype: Any = np.float32) -> NDArray[Any]:
        return np.frombuffer(self.device.read(buffer, 0, buffer.size_bytes), dtype)

    def values(self, value: Value) -> F32:
        view = self._views[value.id]
        held = self.read(view.buffer)
        index = view.offset + np.arange(view.rows)[:, None] * view.stride + np.arange(view.columns)
        return np.array(held[index])

    def untouched(self, outs: Sequence[Value]) -> bool:
        """Nothing but the outputs (all in one buffer) was written."""
        held = self.read(self._views[outs[0].id].buffer).copy()
        for value in outs:
            view = self._views[value.id]
            rows = np.arange(view.rows)[:, None]
            held[view.offset + rows * view.stride + np.arange(view.columns)] = np.nan
        return bool(np.isnan(held).all())

    # The launchers' Context

    def view(self, value: Value, /) -> View:
        return self._views[value.id]

    def banks(self, weight: Weight, /) -> tuple[Bank, ...]:
        return self._banks[weight.name]

    def store(self, cache: Cache, /) -> Store:
        return self._stores[cache.name]

    def carry_token(self) -> Buffer:
        return self._carry["token"]

    def carry_counts(self) -> Buffer:
        return self._carry["counts"]

    def carry_bias(self) -> Buffer:
        return self._carry["bias"]

    def scratch(self, size_bytes: int, /) -> Buffer:
        return self.buffer(np.full(size_bytes // 4, np.nan, np.float32))

    @property
    def result(self) -> Buffer:
        return self._carry["result"]
