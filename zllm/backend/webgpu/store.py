"""The arrays of one cache on the device, by what it keeps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal

from zllm.backend.contract import Group
from zllm.backend.webgpu.device import Buffer, Device
from zllm.backend.webgpu.pool import Lease, Pool
from zllm.errors import BackendError
from zllm.kv_cache.spec import CacheSpec, EntrySpec, IndexSpec, KvSpec, LatentSpec, StateSpec

Dtype = Literal["f32", "f16"]
HALF_HEAD = 8  # keys of f16 are read by as many numbers at once


@dataclass(frozen=True, slots=True)
class Store:
    """Arrays [slots, …], zero at first, one buffer each, f32 but for keys and values of f16.

    Keys and values: two [slots, G, K]. Latents: [slots, width]. Index keys: [slots, e]; with pools
    also each token's gate, and in the slot of a pool's last token the pool's key. Entries: each
    token's key and gate [slots, width], and in the slot of a window's last token its entry
    [slots, K]. Recurrent state: [planes, *shape].
    """

    buffers: tuple[Buffer, ...]
    slot_bytes: tuple[int, ...]  # of each buffer
    group: str
    page_slots: int
    dtype: Dtype = "f32"

    @property
    def size_bytes(self) -> int:
        return sum(buffer.size_bytes for buffer in self.buffers)


def widths(spec: CacheSpec) -> tuple[int, ...]:
    """Numbers of a slot in each array."""
    match spec:
        case KvSpec(kv_heads=heads, head_size=size):
            return (heads * size,) * 2
        case LatentSpec(width=width):
            return (width,)
        case IndexSpec(size=size, pool=pool):
            return (size,) if pool == 1 else (size,) * 3
        case EntrySpec(size=size, width=width):
            return width, width, size
        case StateSpec(shape=shape):
            return (prod(shape),)


def dtype_of(spec: CacheSpec, kv_dtype: Dtype) -> Dtype:
    """How a cache is kept where keys and values are wanted as `kv_dtype`."""
    return kv_dtype if isinstance(spec, KvSpec) and spec.halved else "f32"


def slot_sizes(spec: CacheSpec, kv_dtype: Dtype) -> tuple[int, ...]:
    """Bytes of a slot in each array."""
    number_bytes = 2 if dtype_of(spec, kv_dtype) == "f16" else 4
    return tuple(number_bytes * width for width in widths(spec))


def open_store(
    device: Device, name: str, spec: CacheSpec, group: Group, kv_dtype: Dtype = "f32"
) -> Store:
    """BackendError if an array is larger than a binding."""
    slot_bytes = slot_sizes(spec, kv_dtype)
    _check(device, spec, group, max(slot_bytes))
    slots = group.pages * group.page_slots
    buffers = tuple(
        device.buffer(slots * size, f"{name} array {i}") for i, size in enumerate(slot_bytes)
    )
    return Store(buffers, slot_bytes, group.name, group.page_slots, dtype_of(spec, kv_dtype))


def _check(device: Device, spec: CacheSpec, group: Group, slot_bytes: int) -> None:
    info = device.info
    slots = group.pages * group.page_slots
    if slots * slot_bytes <= info.max_binding_bytes:
        return
    fit = info.max_binding_bytes // slot_bytes // group.page_slots * group.page_slots
    size, limit = slots * slot_bytes / 2**20, info.max_binding_bytes / 2**20
    if isinstance(spec, StateSpec):
        raise BackendError(
            f"{slots} planes of recurrent state take {size:.0f} MiB a layer, and {info.name} binds "
            f"at most {limit:.0f} MiB; run fewer sequences at once: {fit} planes fit"
        )
    raise BackendError(
        f"a cache of {slots} tokens takes {size:.0f} MiB a layer, and {info.name} binds at most "
        f"{limit:.0f} MiB; lower --context so that all sequences together need at most {fit} tokens"
    )


def copy_slots(
    pool: Pool, stores: Sequence[Store], source: Sequence[int], target: Sequence[int]
) -> None:
    """Copies inside one buffer are not allowed, so they pass through another, in one submit."""
    slot_bytes = sum(sum(store.slot_bytes) for store in stores)
    if not source or not slot_bytes:
        return
    runs = list(_runs(source, target))
    scratch = Lease(pool).take(slot_bytes * len(source), "copied slots")
    at = 0
    out, back = [], []
    for store in stores:
        for buffer, size in zip(store.buffers, store.slot_bytes, strict=True):
            for first, to, count in runs:
                out.append((buffer, first * size, scratch, at, count * size))
                back.append((scratch, at, buffer, to * size, count * size))
                at += count * size
    pool.device.copy([*out, *back])


def _runs(source: Sequence[int], target: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """(from, to, slots) of consecutive slots that move together."""
    start = 0
    for i in range(1, len(source) + 1):
        if i < len(source) and (source[i], target[i]) == (source[i - 1] + 1, target[i - 1] + 1):
            continue
        yield source[start], target[start], i - start
        start = i
