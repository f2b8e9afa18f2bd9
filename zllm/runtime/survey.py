"""What a model is made of, layer by layer: read from one recorded round. No weight is read."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from zllm.backend.contract import Cache, Op, PlanKey, Value, Weight
from zllm.kv_cache.spec import CacheSpec, StateSpec, values_per_token
from zllm.rope import RopeSpec
from zllm.runtime.compose import Decoder, create_decoder, uses_of
from zllm.runtime.recorder import Recorder
from zllm.runtime.survey_parts import Part, part_of

F32_BYTES = 4
_LAYER = re.compile(r"layers\.(\d+)\.")  # of the names of weights and caches


@dataclass(frozen=True, slots=True)
class Layer:
    """What one layer does, in the order of its operations, and what it keeps."""

    index: int
    parts: tuple[Part, ...]
    weights_bytes: int  # as stored
    cache_bytes_per_token: int
    state_bytes: int  # per sequence and plane


@dataclass(frozen=True, slots=True)
class Load:
    """One weight as a backend is asked to hold it."""

    parts: tuple[Any, ...]
    uses: frozenset[str]


@dataclass(slots=True)
class Inventory:
    """Resources that count: what a decoder asks for when it is built."""

    tensors: Mapping[str, Any]
    weights: dict[str, Weight] = field(default_factory=dict)
    stored_bytes: dict[str, int] = field(default_factory=dict)
    loads: dict[str, Load] = field(default_factory=dict)
    caches: dict[str, CacheSpec] = field(default_factory=dict)
    tables: dict[RopeSpec, Weight] = field(default_factory=dict)
    _counted: set[int] = field(default_factory=set)

    def weight(
        self, *names: str, parts: tuple[int, ...] = (), read_by: str = "", together: int = 1
    ) -> Weight:
        stored = [self.tensors[name] for name in names]
        rows = tuple(weight.shape[0] for weight in stored)
        shape = (sum(rows), *stored[0].shape[1:])
        name = names[0] if len(names) == 1 else f"{names[0]}…{names[-1]}"
        self.weights[name] = Weight(name, shape, parts or rows)
        self.stored_bytes[name] = sum(self._size_bytes(weight) for weight in stored)
        self.loads[name] = Load(tuple(stored), uses_of(stored[0].shape, read_by))
        return self.weights[name]

    def _size_bytes(self, weight: Any) -> int:
        """0 for bytes that were counted before: weights may be rows of one tensor."""
        if id(weight.data) in self._counted:
            return 0
        self._counted.add(id(weight.data))
        size_bytes: int = weight.size_bytes
        return size_bytes

    def rope_table(self, spec: RopeSpec, /) -> Weight:
        shape = (1, spec.rotated)
        return self.tables.setdefault(spec, Weight(f"rope_table.{len(self.tables)}", shape, (1,)))

    def cache(self, name: str, spec: CacheSpec, /) -> Cache:
        self.caches[name] = spec
        return Cache(name, "state" if isinstance(spec, StateSpec) else "full")


@dataclass(frozen=True, slots=True)
class Survey:
    layers: tuple[Layer, ...]
    inventory: Inventory
    decoder: Decoder = field(repr=False)

    def ops(self, rows: int, seqs: int) -> tuple[Op, ...]:
        """A round as a backend that can do everything would see it."""
        return _record(self.decoder, rows, seqs)


def survey(architecture: str, config: Any, tensors: Mapping[str, Any]) -> Survey:
    """The layers of a model and what it holds, from its config and the shapes of its tensors."""
    inventory = Inventory(tensors)
    decoder = create_decoder(architecture, config, inventory)
    by_layer = _by_layer(_record(decoder, 1, 1))
    made = {out.id: op for ops in by_layer.values() for op in ops for out in op.outs}
    held = _sums(inventory.stored_bytes, lambda size_bytes: size_bytes)
    cached = _sums(inventory.caches, lambda spec: F32_BYTES * values_per_token(spec))
    state = _sums(inventory.caches, _state_bytes)
    layers = [
        Layer(i, _parts(by_layer[i], made), held[i], cached[i], state[i])
        for i in sorted(by_layer.keys() - {None}, key=int)
    ]
    return Survey(tuple(layers), inventory, decoder)


def _record(decoder: Decoder, rows: int, seqs: int) -> tuple[Op, ...]:
    recorder = Recorder(PlanKey(rows, seqs, context=rows + 1, emit="token"), lambda op: None)
    decoder(recorder)
    return recorder.finish(()).ops


def _by_layer(ops: Sequence[Op]) -> dict[Any, list[Op]]:
    """Ops by the layer that their weights and caches are of; None: of no layer.

    An op without such an operand belongs where the op before it does.
    """
    found: dict[Any, list[Op]] = defaultdict(list)
    current: int | None = None
    for op in ops:
        names = [x.name for x in op.ins if isinstance(x, Weight | Cache)]
        names = [name for name in names if not name.startswith("rope_table.")]
        layers = [int(match[1]) for match in map(_LAYER.search, names) if match]
        if names:
            current = layers[0] if layers else None
        found[current].append(op)
    return found


def _parts(ops: Sequence[Op], made: Mapping[int, Op]) -> tuple[Part, ...]:
    ids = {out.id for op in ops for out in op.outs}

    def source(value: Value) -> tuple[Op, bool]:
        return made[value.id], value.id in ids

    routed = any(op.name == "experts" for op in ops)
    found = (part_of(op, source, routed=routed) for op in ops)
    return tuple(part for part in found if part is not None)


def _sums(named: Mapping[str, Any], size: Callable[[Any], int]) -> dict[int, int]:
    """Sizes of what has a layer's name, by layer."""
    sums: dict[int, int] = defaultdict(int)
    for name, item in named.items():
        match = _LAYER.search(name)
        if match:
            sums[int(match[1])] += size(item)
    return sums


def _state_bytes(spec: CacheSpec) -> int:
    return F32_BYTES * math.prod(spec.shape) if isinstance(spec, StateSpec) else 0
