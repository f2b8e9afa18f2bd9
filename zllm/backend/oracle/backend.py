"""NumPy: correct by construction, the judge of every other backend. Runs each round at submit."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from zllm.backend.contract import (
    PACKED_USES,
    Cache,
    Group,
    Op,
    PlanKey,
    Recording,
    Round,
    Weight,
)
from zllm.backend.oracle import ops
from zllm.backend.oracle.plan import Arena, OraclePlan
from zllm.backend.oracle.resident import (
    PACKED_CHUNK_ELEMENTS,
    Dense,
    Packed,
    Resident,
    joined_shape,
)
from zllm.backend.oracle.sample_ops import Carry
from zllm.backend.oracle.single import SingleOp
from zllm.backend.oracle.storage import Storage
from zllm.kv_cache.spec import CacheSpec, StateSpec
from zllm.weight.linear_weight import LinearWeight

F32 = NDArray[np.float32]


@dataclass(slots=True)
class Done(Awaitable[Round]):
    """A ticket that is answered already."""

    round: Round

    def __await__(self) -> Generator[None, None, Round]:
        return self.round
        yield  # a generator that never yields: `await` blocks natively


class OracleBackend:
    """`packed` keeps weights as the file holds them and decodes them at each use."""

    name = "oracle"
    rounds_in_flight = 1  # submit runs the round, so nothing is gained by running ahead
    # In a page a round cannot be left, and a stop must not wait long.
    prefill_rows = 64 if sys.platform == "emscripten" else 512
    keeps_prefill = False

    def __init__(self, *, lanes: int, packed: bool = False) -> None:
        self.packed = packed
        self.weights: dict[str, Resident] = {}
        self.caches: dict[str, Storage] = {}
        self.groups: dict[str, Group] = {}
        self.carry = Carry(lanes)
        self._scratch = np.empty(PACKED_CHUNK_ELEMENTS if packed else 0, np.float32)
        self.arena = Arena()
        # Called after each op with the arrays of its results; they are overwritten soon after.
        self.observer: Callable[[Op, list[F32]], None] | None = None

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
        shape = joined_shape(parts)
        # Vectors and tables are small and read by elementwise ops: always f32.
        packed = self.packed and uses <= PACKED_USES
        if packed and len(shape) == 2:
            self.weights[name] = Packed(parts, self._scratch)
        else:
            self.weights[name] = Dense(parts)
        return Weight(name, shape, tuple(part.shape[0] for part in parts))

    def new_cache(self, name: str, spec: CacheSpec, /, *, group: Group) -> Cache:
        self.caches[name] = Storage.of(spec, group)
        if not isinstance(spec, StateSpec):
            self.groups[group.name] = group
        return Cache(name, group.name)

    def copy_slots(self, group: str, source: Sequence[int], target: Sequence[int], /) -> None:
        for storage in self.caches.values():
            if storage.group == group:
                storage.copy(source, target)

    def write_lane(
        self, lane: int, /, *, counts: NDArray[np.int32] | None, bias: F32 | None
    ) -> None:
        if counts is not None:
            self.carry.counts(counts.size)[lane] = counts
        if bias is not None:
            self.carry.bias(bias.size)[lane] = bias

    def bucket(self, key: PlanKey, /) -> PlanKey:
        """Exact rows; the context in powers of two, so that decode plans last."""
        return replace(key, context=max(128, 1 << (key.context - 1).bit_length()))

    def missing(self, op: Op, /) -> str | None:
        return None if op.name in ops.LOWER else "the oracle has no reference for it"

    def compile(self, recording: Recording, /) -> OraclePlan:
        return OraclePlan(recording, self)

    def single(self, op: Op, recording: Recording, /) -> SingleOp:
        """One op of a recording that another backend runs; its weights and caches are here."""
        return SingleOp(op, recording, self)

    def memory(self) -> Mapping[str, int]:
        return {
            "weights": sum(weight.size_bytes for weight in self.weights.values()),
            "caches": sum(storage.size_bytes for storage in self.caches.values()),
            "activations": self.arena.size_bytes,
        }

    def weight_bytes(self, weight: Weight, /) -> int:
        return self.weights[weight.name].size_bytes

    def slot_bytes(self, group: str, /) -> int:
        slots = self.groups[group].pages * self.groups[group].page_slots
        held = (s.size_bytes for s in self.caches.values() if s.group == group)
        return sum(held) // slots

    def close(self) -> None:
        self.weights.clear()
        self.caches.clear()
