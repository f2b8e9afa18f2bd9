"""The one generic composition: binds a decoder, its tensors and a backend."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from zllm import rope
from zllm.backend.capability import Backend, Cache, Group, Weight
from zllm.errors import BackendError
from zllm.kv_cache.paged import KvSpec
from zllm.rope import RopeSpec
from zllm.runtime.loop import Limits, Loop
from zllm.runtime.plans import PlanPool

PAGE_SLOTS = 16

MATRIX_USES = frozenset({"embed", "linear", "gated_linear"})
VECTOR_USES = frozenset({"rms_norm", "bias"})
TABLE_USES = frozenset({"rope_append"})

BACKENDS = ("oracle", "webgpu", "auto")
RESIDENT = ("f32", "packed")  # of the oracle; a device keeps weights packed


@dataclass(frozen=True, slots=True)
class ArrayBytes:
    """A computed table as the bytes of a weight."""

    array: np.ndarray[Any, np.dtype[np.float32]]

    @property
    def size_bytes(self) -> int:
        return self.array.nbytes

    def read(self, offset_bytes: int = 0, size_bytes: int | None = None, /) -> memoryview:
        data = np.ascontiguousarray(self.array).data.cast("B")
        end = self.size_bytes if size_bytes is None else offset_bytes + size_bytes
        return data[offset_bytes:end]


class ModelResources:
    """Loads what the decoder asks for into the backend, once."""

    def __init__(
        self,
        backend: Backend,
        tensors: Mapping[str, Any],
        dense: Callable[[tuple[int, ...], ArrayBytes], Any],
        group: Group,
        context: int,
        progress: Callable[[int], None] = lambda size_bytes: None,
    ) -> None:
        self._backend = backend
        self._tensors = tensors
        self._dense = dense
        self._group = group
        self._context = context
        self._progress = progress

    def weight(self, *names: str) -> Weight:
        parts = [self._tensors[name] for name in names]
        uses = MATRIX_USES if len(parts[0].shape) == 2 else VECTOR_USES
        weight = self._backend.load("+".join(names), parts, uses=uses)
        self._progress(sum(part.data.size_bytes for part in parts))
        return weight

    def rope_table(self, spec: RopeSpec, /) -> Weight:
        table = rope.table(spec, self._context)
        part = self._dense(table.shape, ArrayBytes(table))
        return self._backend.load("rope_table", [part], uses=TABLE_USES)

    def kv_cache(self, name: str, spec: KvSpec, /, *, group: str = "full") -> Cache:
        assert group == self._group.name
        return self._backend.new_cache(name, spec, group=self._group)


def create_backend(name: str, *, lanes: int, resident: str = "f32") -> Backend:
    """`oracle`, `webgpu`, or `auto`: WebGPU where there is a GPU, else the oracle.

    BackendError names what is missing and what to do.
    """
    if name not in BACKENDS:
        raise BackendError(f"unknown backend {name!r}: use one of {', '.join(BACKENDS)}")
    if resident not in RESIDENT:
        raise BackendError(f"unknown resident form {resident!r}: use one of {', '.join(RESIDENT)}")
    if name != "oracle":
        from zllm.backend.webgpu.backend import open_backend

        try:
            return open_backend(lanes=lanes, software=name == "webgpu")
        except BackendError:
            if name == "webgpu":
                raise
    from zllm.backend.oracle.backend import OracleBackend

    return OracleBackend(lanes=lanes, packed=resident == "packed")


def build_loop(
    architecture: str,
    config: Any,
    backend: Backend,
    resources: Callable[[Group], ModelResources],
    limits: Limits,
    *,
    cache_tokens: int,
) -> Loop:
    """The engine loop of one model: `zllm.runtime.<architecture>.decoder` on `backend`."""
    group = Group("full", PAGE_SLOTS, 1 + -(-cache_tokens // PAGE_SLOTS))
    decoder = import_module(f"zllm.runtime.{architecture}.decoder").Decoder
    plans = PlanPool(backend, decoder(config, resources(group)), [group])
    return Loop(backend, plans, group, limits)
