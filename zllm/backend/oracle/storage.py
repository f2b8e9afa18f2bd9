"""The arrays of one cache, by what it keeps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from zllm.backend.contract import Group
from zllm.backend.oracle.memory import lazy_zeros
from zllm.kv_cache.spec import CacheSpec, EntrySpec, IndexSpec, KvSpec, LatentSpec, StateSpec

F32 = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Storage:
    """f32 arrays with one axis of slots.

    Keys and values: two of [G, slots, K], so that a head's tokens lie in a run. Latents:
    [slots, width]. Index keys: [slots, e]; with pools also each token's gate, and in the slot of a
    pool's last token the pool's key. Entries: each token's key and gate [slots, width], and in the
    slot of a window's last token its entry [slots, K]. Recurrent state: [planes, *shape].
    """

    arrays: tuple[F32, ...]
    group: str
    slot_axis: int

    @classmethod
    def of(cls, spec: CacheSpec, group: Group) -> Storage:
        # Zeros, not whatever was there: a slot never written must not turn 0 · NaN into NaN.
        slots = group.pages * group.page_slots
        match spec:
            case KvSpec(kv_heads=heads, head_size=size):
                return cls(_zeros(2, (heads, slots, size)), group.name, 1)
            case LatentSpec(width=width):
                return cls(_zeros(1, (slots, width)), group.name, 0)
            case IndexSpec(size=size, pool=pool):
                return cls(_zeros(1 if pool == 1 else 3, (slots, size)), group.name, 0)
            case EntrySpec(size=size, width=width):
                arrays = _zeros(2, (slots, width)) + _zeros(1, (slots, size))
                return cls(arrays, group.name, 0)
            case StateSpec(shape=shape):
                return cls(_zeros(1, (slots, *shape)), group.name, 0)

    def copy(self, source: Sequence[int], target: Sequence[int]) -> None:
        for array in self.arrays:
            moved = np.take(array, list(source), self.slot_axis)
            np.moveaxis(array, self.slot_axis, 0)[list(target)] = np.moveaxis(
                moved, self.slot_axis, 0
            )

    @property
    def size_bytes(self) -> int:
        return sum(array.nbytes for array in self.arrays)


def _zeros(count: int, shape: tuple[int, ...]) -> tuple[F32, ...]:
    return tuple(lazy_zeros(shape) for _ in range(count))
